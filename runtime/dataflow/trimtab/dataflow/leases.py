"""Deals the rows of a portion to all ranks at once: a pure function, so that who asks again gets the same rows."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec
from msgspec import Raw

from trimtab.dataflow.ledger.groups import Allotment, Sample, all_samples
from trimtab.dataflow.ledger.groups import Group as LedgerGroup
from trimtab.fabric.wire.lease import BatchLease, BatchRequest, Episode, Group, SampleReference, StepTotals
from trimtab.fabric.wire.packed_lease import encode_packed, packed
from trimtab.fabric.wire.trajectory import Finish

_LENGTH = Finish.LENGTH


@dataclass(frozen=True, kw_only=True)
class LeaseTerms:
    """What all leases of a portion have in common."""

    totals: StepTotals | None
    """Of the whole step, on its last portion."""
    stream: str
    issued_at: float
    expires_at: float
    columns_stream: str | None = None


class _Dealt(msgspec.Struct, frozen=True, gc=False):
    """A row that is leased."""

    place: int
    """Of its allotment in the portion."""
    sample: Sample
    episode: int
    """Which of its group's that have rows."""


class DealtPortion:
    """A portion in the hands of its ranks. Looking through it once serves all of them; what each is told is put
    together when it asks.
    """

    def __init__(self, portion: Sequence[Allotment], terms: LeaseTerms, *, world_size: int) -> None:
        """Ranks get equal numbers of rows (give or take one) of nearly equal length in total."""
        self.portion = portion
        self.terms = terms
        self._digest = zlib.crc32(" ".join(allotment.group.group_id for allotment in portion).encode())
        self._groups: list[Raw | None] = [None] * len(portion)
        self._rows = [
            _Dealt(place, sample, episode)
            for place, allotment in enumerate(portion)
            for sample, episode in zip(allotment.group.samples, allotment.group.episode_numbers(), strict=True)
        ]
        self._hands = deal([row.sample for row in self._rows], world_size=world_size)

    @property
    def rows(self) -> int:
        return len(self._rows)

    def lease(self, request: BatchRequest) -> bytes:
        """The encoded lease of the rank that asks: its rows in the order of the portion."""
        groups: list[Raw] = []
        samples: list[Raw] = []
        newest = -1
        for number in self._hands[request.rank]:
            row = self._rows[number]
            if row.place != newest:
                newest = row.place
                groups.append(self._group(newest))
            uses = self.portion[newest].uses
            samples.append(packed(_reference(row, group=len(groups) - 1, uses=uses)))
        terms = BatchLease(
            lease_id=f"{request.policy}.{request.step}.{request.rank}.{request.world_size}",
            job=request.job,
            policy=request.policy,
            step=request.step,
            rank=request.rank,
            world_size=request.world_size,
            stream=self.terms.stream,
            columns_stream=self.terms.columns_stream,
            groups=(),
            samples=(),
            chunk=request.chunk,
            dealt=self._digest,
            totals=self.terms.totals,
            issued_at=self.terms.issued_at,
            expires_at=self.terms.expires_at,
        )
        return encode_packed(terms, groups=groups, samples=samples)

    def _group(self, place: int) -> Raw:
        """One for all ranks that hold a row of it."""
        group = self._groups[place]
        if group is None:
            group = self._groups[place] = packed(_group(self.portion[place].group))
        return group


def deal(rows: Sequence[Sample], *, world_size: int) -> list[list[int]]:
    """By rank, the places of its rows in ascending order. Longest first, back and forth over the ranks."""
    hands: list[list[int]] = [[] for _ in range(world_size)]
    keys = [(-row.tokens, row.sequence) for row in rows]
    for number, place in enumerate(sorted(range(len(rows)), key=keys.__getitem__)):
        round_, turn = divmod(number, world_size)
        hands[turn if round_ % 2 == 0 else world_size - 1 - turn].append(place)
    for hand in hands:
        hand.sort()
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
        # Most groups have one row an episode.
        episodes = tuple(
            Episode(row.reward, 1, row.trained_tokens, row.finish is _LENGTH, row.turn_rewards) for row in group.samples
        )
    else:
        episodes = tuple(map(_episode, group.rows_by_episode.values()))
    return Group(group_id=group.group_id, prompt_id=group.prompt_id, episodes=episodes, columns=group.columns)


def _episode(rows: Sequence[Sample]) -> Episode:
    reward, tokens, truncated = 0.0, 0, False
    for row in rows:
        reward += row.reward
        tokens += row.trained_tokens
        truncated = truncated or row.finish is _LENGTH
    turns = [turn for row in rows for turn in row.turn_rewards]
    turns.sort(key=attrgetter("number"))
    return Episode(reward / len(rows), len(rows), tokens, truncated, tuple(turns))


def _reference(row: _Dealt, *, group: int, uses: int) -> SampleReference:
    sample = row.sample
    return SampleReference(
        sequence=sample.sequence,
        trajectory_id=sample.trajectory_id,
        group=group,
        episode=row.episode,
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
