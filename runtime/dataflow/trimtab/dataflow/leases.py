"""Deals the rows of a step to the ranks: a pure function, so that a rank that asks again gets the same rows."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.dataflow.ledger.groups import Group as LedgerGroup
from trimtab.dataflow.ledger.groups import Sample, all_samples
from trimtab.fabric.wire.lease import BatchLease, BatchRequest, Group, SampleReference, StepTotals


def lease(
    groups: Sequence[LedgerGroup], request: BatchRequest, *, stream: str, now: float, expires_s: float
) -> BatchLease:
    """The lease of one rank. Ranks get equal numbers of rows (give or take one) of nearly equal length in total."""
    rows = deal(all_samples(groups), world_size=request.world_size)[request.rank]
    needed = {row.header.group_id for row in rows}
    own_groups = [group for group in groups if group.group_id in needed]
    position = {group.group_id: index for index, group in enumerate(own_groups)}
    return BatchLease(
        lease_id=f"{request.policy}.{request.step}.{request.rank}.{request.world_size}",
        job=request.job,
        policy=request.policy,
        step=request.step,
        rank=request.rank,
        world_size=request.world_size,
        stream=stream,
        groups=tuple(_group(group) for group in own_groups),
        samples=tuple(_reference(row, group=position[row.header.group_id]) for row in rows),
        totals=_totals(groups),
        issued_at=now,
        expires_at=now + expires_s,
    )


def deal(rows: Sequence[Sample], *, world_size: int) -> list[list[Sample]]:
    """Longest first, back and forth over the ranks."""
    hands: list[list[Sample]] = [[] for _ in range(world_size)]
    ordered = sorted(rows, key=lambda row: (-row.header.tokens, row.sequence))
    for number, row in enumerate(ordered):
        round_, place = divmod(number, world_size)
        hands[place if round_ % 2 == 0 else world_size - 1 - place].append(row)
    return hands


def _group(group: LedgerGroup) -> Group:
    return Group(
        group_id=group.group_id,
        prompt_id=group.samples[0].header.prompt_id,
        rewards=tuple(sample.reward for sample in group.samples),
    )


def _reference(sample: Sample, *, group: int) -> SampleReference:
    header = sample.header
    return SampleReference(
        sequence=sample.sequence,
        trajectory_id=sample.trajectory_id,
        group=group,
        group_index=header.group_index,
        reward=sample.reward,
        prompt_tokens=header.prompt_tokens,
        response_tokens=header.response_tokens,
        trained_tokens=header.trained_tokens,
        oldest_version=sample.oldest_version,
        newest_version=sample.newest_version,
    )


def _totals(groups: Sequence[LedgerGroup]) -> StepTotals:
    headers = [sample.header for sample in all_samples(groups)]
    return StepTotals(
        samples=len(headers),
        groups=len(groups),
        tokens=sum(header.tokens for header in headers),
        trained_tokens=sum(header.trained_tokens for header in headers),
    )
