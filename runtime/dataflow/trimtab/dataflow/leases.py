"""Deals the rows of a step to the ranks: a pure function, so that a rank that asks again gets the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from trimtab.dataflow.ledger.groups import Allotment, Sample, all_samples
from trimtab.dataflow.ledger.groups import Group as LedgerGroup
from trimtab.fabric.wire.lease import BatchLease, BatchRequest, Episode, Group, SampleReference, StepTotals
from trimtab.fabric.wire.trajectory import Finish

_LENGTH = Finish.LENGTH


def lease(
    portion: Sequence[Allotment],
    request: BatchRequest,
    *,
    totals: StepTotals | None,
    stream: str,
    now: float,
    expires_s: float,
) -> BatchLease:
    """The lease of one rank. Ranks get equal numbers of rows (give or take one) of nearly equal length in total.

    `totals` are those of the whole step, for its last portion.
    """
    rows = deal(all_samples(portion), world_size=request.world_size)[request.rank]
    own = {row.sequence for row in rows}
    groups: list[Group] = []
    samples: list[SampleReference] = []
    for allotment in portion:
        group = allotment.group
        before = len(samples)
        samples += [
            _reference(sample, group=len(groups), episode=episode, uses=allotment.uses)
            for sample, episode in zip(group.samples, group.episode_numbers(), strict=True)
            if sample.sequence in own
        ]
        if len(samples) > before:
            groups.append(_group(group))
    return BatchLease(
        lease_id=f"{request.policy}.{request.step}.{request.rank}.{request.world_size}",
        job=request.job,
        policy=request.policy,
        step=request.step,
        rank=request.rank,
        world_size=request.world_size,
        stream=stream,
        groups=tuple(groups),
        samples=tuple(samples),
        chunk=request.chunk,
        totals=totals,
        issued_at=now,
        expires_at=now + expires_s,
    )


def deal(rows: Sequence[Sample], *, world_size: int) -> list[list[Sample]]:
    """Longest first, back and forth over the ranks."""
    hands: list[list[Sample]] = [[] for _ in range(world_size)]
    ordered = sorted(rows, key=lambda row: (-row.tokens, row.sequence))
    for number, row in enumerate(ordered):
        round_, place = divmod(number, world_size)
        hands[place if round_ % 2 == 0 else world_size - 1 - place].append(row)
    return hands


def step_totals(allotments: Sequence[Allotment]) -> StepTotals:
    samples = all_samples(allotments)
    return StepTotals(
        samples=len(samples),
        groups=len(allotments),
        episodes=sum(allotment.group.episodes for allotment in allotments),
        tokens=sum(sample.tokens for sample in samples),
        trained_tokens=sum(sample.trained_tokens for sample in samples),
    )


def _group(group: LedgerGroup) -> Group:
    if group.episodes == len(group.samples):
        # Most groups have one row an episode, and all of them pass here for every rank.
        episodes = tuple(
            Episode(row.reward, 1, row.trained_tokens, row.finish is _LENGTH, row.turn_rewards) for row in group.samples
        )
    else:
        episodes = tuple(map(_episode, group.rows_by_episode.values()))
    return Group(group_id=group.group_id, prompt_id=group.prompt_id, episodes=episodes)


def _episode(rows: Sequence[Sample]) -> Episode:
    reward, tokens, truncated = 0.0, 0, False
    for row in rows:
        reward += row.reward
        tokens += row.trained_tokens
        truncated = truncated or row.finish is _LENGTH
    turns = [turn for row in rows for turn in row.turn_rewards]
    turns.sort(key=attrgetter("number"))
    return Episode(reward / len(rows), len(rows), tokens, truncated, tuple(turns))


def _reference(sample: Sample, *, group: int, episode: int, uses: int) -> SampleReference:
    return SampleReference(
        sequence=sample.sequence,
        trajectory_id=sample.trajectory_id,
        group=group,
        episode=episode,
        group_index=sample.index,
        part=sample.part,
        reward=sample.reward,
        prompt_tokens=sample.prompt_tokens,
        response_tokens=sample.response_tokens,
        trained_tokens=sample.trained_tokens,
        oldest_version=sample.oldest_version,
        newest_version=sample.newest_version,
        uses=uses,
    )
