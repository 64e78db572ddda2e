"""Prompt groups of one policy on their way from the first arrived row to the step that trains them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType

import msgspec

from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.episode_rows import EpisodeRows
from trimtab.dataflow.outcomes import GroupOutcome, SampleOutcome, mean_parts
from trimtab.fabric.wire.header import TrajectoryHeader
from trimtab.fabric.wire.stage import ColumnReference
from trimtab.fabric.wire.trajectory import Finish, TurnReward

_NO_PARTS: Mapping[str, float] = MappingProxyType({})
_by_index = attrgetter("index")


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One arrived row that can be trained: where it lies, and what its header says of it. Many of these wait at
    once, so they hold nothing that their group holds, and the garbage collector need not look at them.
    """

    sequence: int
    trajectory_id: str
    index: int
    part: int
    reward: float
    finish: Finish
    prompt_tokens: int
    response_tokens: int
    trained_tokens: int
    turns: int
    oldest_version: int
    newest_version: int
    turn_rewards: tuple[TurnReward, ...] = ()
    reward_parts: Mapping[str, float] = _NO_PARTS

    @classmethod
    def of(cls, sequence: int, trajectory_id: str, header: TrajectoryHeader) -> Sample | None:
        """None for a failed one, and for one without trained tokens: neither may ever pass for a reward."""
        if (
            header.reward is None
            or header.finish is None
            or header.oldest_version is None
            or header.newest_version is None
        ):
            return None
        # By place: with names it would take half as long again, for every row that arrives.
        return cls(
            sequence,
            trajectory_id,
            header.group_index,
            header.part,
            header.reward,
            header.finish,
            header.prompt_tokens,
            header.response_tokens,
            header.trained_tokens,
            header.turns,
            header.oldest_version,
            header.newest_version,
            header.turn_rewards,
            header.reward_parts or _NO_PARTS,
        )

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens

    def outcome(self) -> SampleOutcome:
        return SampleOutcome(
            index=self.index,
            part=self.part,
            reward=self.reward,
            finish=self.finish,
            prompt_tokens=self.prompt_tokens,
            response_tokens=self.response_tokens,
            trained_tokens=self.trained_tokens,
            turns=self.turns,
            oldest_version=self.oldest_version,
            newest_version=self.newest_version,
            reward_parts=self.reward_parts,
        )


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What a filter left of a group."""

    indices: tuple[int, ...] = ()
    """Of the episodes all of whose rows are kept."""
    rows: tuple[tuple[int, int], ...] = ()
    """Of other episodes, the index and the part of each row that is."""


class PartialGroup(EpisodeRows[Sample | None]):
    """The episodes of one prompt for one policy, as far as they have arrived. None is a row that cannot be trained."""

    __slots__ = ("first_sequence", "label", "prompt_id", "role")

    def __init__(self, header: TrajectoryHeader, *, first_sequence: int) -> None:
        super().__init__()
        self.role = header.role
        self.prompt_id = header.prompt_id
        self.label = header.label
        self.first_sequence = first_sequence


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A complete group, all of whose rows can be trained."""

    group_id: str
    policy: str
    """Whose trajectories these are. Other policies' trainers may take them too."""
    role: str
    prompt_id: str
    label: str = ""
    """Of the prompt, where the manifest names a column to route by."""
    samples: tuple[Sample, ...]
    """Its rows by index and part. Episodes without rows are not in it."""
    episodes: int
    """That have rows."""
    oldest_version: int
    """Of the oldest trained token of any row: the deadline of the group, which is trained or not as one."""
    first_sequence: int
    """Where the first row for it lies, also when that is of a run that was given up, or when filters have left it out:
    what is restored is the whole group, for its deadline.
    """
    filtered: bool = False
    """Whether the filters were asked about it."""
    columns: tuple[ColumnReference, ...] = ()
    """What stages have computed about its rows, for ranks to join to them."""
    first_column: int | None = None
    """Where the first column about it lies, also of a stage whose numbers are not joined."""

    @classmethod
    def of(cls, group_id: str, partial: PartialGroup, *, policy: str) -> Group | Arrival:
        """FAILED when one row cannot be trained: it spoils its group, because advantages compare all of them. EMPTY
        when there is none.
        """
        samples = [sample for sample in partial.rows if sample is not None]
        if len(samples) < len(partial.rows):
            return Arrival.FAILED
        if not samples:
            return Arrival.EMPTY
        # Rows of an episode are in their order already, and stay in it.
        samples.sort(key=_by_index)
        return cls(
            group_id=group_id,
            policy=policy,
            role=partial.role,
            prompt_id=partial.prompt_id,
            label=partial.label,
            samples=tuple(samples),
            episodes=len(partial.closed) - partial.empty,
            oldest_version=min(sample.oldest_version for sample in samples),
            first_sequence=partial.first_sequence,
        )

    @property
    def tokens(self) -> int:
        return sum(sample.tokens for sample in self.samples)

    @property
    def rows_by_episode(self) -> dict[int, list[Sample]]:
        """By the index of the episode, its rows."""
        rows: dict[int, list[Sample]] = {}
        for sample in self.samples:
            rows.setdefault(sample.index, []).append(sample)
        return rows

    def episode_numbers(self) -> Sequence[int]:
        """For each row, which of the episodes that have rows it is of."""
        if self.episodes == len(self.samples):
            return range(self.episodes)
        numbers: list[int] = []
        number, index = -1, -1
        for sample in self.samples:
            if sample.index != index:
                number, index = number + 1, sample.index
            numbers.append(number)
        return numbers

    def reduced_to(self, kept: Kept) -> Group:
        """Without all rows but these. Its deadline stays: what is left may be younger, and is no less urgent."""
        episodes, rows = frozenset(kept.indices), frozenset(kept.rows)
        samples = tuple(
            sample for sample in self.samples if sample.index in episodes or (sample.index, sample.part) in rows
        )
        return msgspec.structs.replace(self, samples=samples, episodes=_episodes(samples), filtered=True)

    def kept(self) -> Kept:
        """What it holds, for `reduced_to` to take from the whole group again."""
        return Kept(rows=tuple((sample.index, sample.part) for sample in self.samples))

    def outcome(self) -> GroupOutcome:
        """What curators, filters and selections see of it."""
        return GroupOutcome(
            policy=self.policy,
            role=self.role,
            prompt_id=self.prompt_id,
            label=self.label,
            rows=tuple(sample.outcome() for sample in self.samples),
        )


class Allotment(msgspec.Struct, frozen=True, gc=False):
    """A group in a step of a trainer."""

    group: Group
    uses: int
    """How often this trainer had it before."""


def all_samples(allotments: Iterable[Allotment]) -> list[Sample]:
    return [sample for allotment in allotments for sample in allotment.group.samples]


def mean_reward(allotments: Sequence[Allotment]) -> float:
    """Of the episodes: one with many rows counts no more than another."""
    total = 0.0
    episodes = 0
    for allotment in allotments:
        group = allotment.group
        episodes += group.episodes
        if group.episodes == len(group.samples):
            total += sum([sample.reward for sample in group.samples])
        else:
            total += sum(sum(row.reward for row in rows) / len(rows) for rows in group.rows_by_episode.values())
    return total / episodes


def mean_reward_parts(allotments: Sequence[Allotment]) -> dict[str, float]:
    """By name, over the episodes that have it; of an episode's rows the mean."""
    groups = [allotment.group for allotment in allotments if any(row.reward_parts for row in allotment.group.samples)]
    return mean_parts(
        mean_parts(row.reward_parts for row in rows) for group in groups for rows in group.rows_by_episode.values()
    )


def _episodes(samples: Sequence[Sample]) -> int:
    return len({sample.index for sample in samples})
