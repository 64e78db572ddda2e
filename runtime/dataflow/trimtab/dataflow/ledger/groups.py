"""Prompt groups of one policy on their way from the first arrived sample to the step that trains them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from trimtab.dataflow.outcomes import GroupOutcome, SampleOutcome
from trimtab.fabric.wire.header import TrajectoryHeader
from trimtab.fabric.wire.trajectory import Finish, TurnReward


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One arrived trajectory that can be trained: where it lies, and what its header says of it. Many of these wait at
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
        return cls(
            sequence=sequence,
            trajectory_id=trajectory_id,
            index=header.group_index,
            part=header.part,
            reward=header.reward,
            finish=header.finish,
            prompt_tokens=header.prompt_tokens,
            response_tokens=header.response_tokens,
            trained_tokens=header.trained_tokens,
            turns=header.turns,
            oldest_version=header.oldest_version,
            newest_version=header.newest_version,
            turn_rewards=header.turn_rewards,
        )

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens

    def outcome(self) -> SampleOutcome:
        return SampleOutcome(
            index=self.index,
            reward=self.reward,
            finish=self.finish,
            prompt_tokens=self.prompt_tokens,
            response_tokens=self.response_tokens,
            trained_tokens=self.trained_tokens,
            turns=self.turns,
            oldest_version=self.oldest_version,
            newest_version=self.newest_version,
        )


@dataclass
class PartialGroup:
    """The samples of one prompt for one policy, as far as they have arrived."""

    role: str
    prompt_id: str
    first_sequence: int
    samples: dict[int, Sample | None] = field(default_factory=dict)
    """By index; None for one that cannot be trained."""
    tokens: int = 0

    def add(self, index: int, sample: Sample | None, *, tokens: int) -> None:
        self.samples[index] = sample
        self.tokens += tokens


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A complete group, all of whose samples can be trained."""

    group_id: str
    policy: str
    """Whose trajectories these are. Other policies' trainers may take them too."""
    role: str
    prompt_id: str
    samples: tuple[Sample, ...]
    """By index."""
    oldest_version: int
    """Of the oldest trained token of any sample: the deadline of the group, which is trained or not as one."""
    first_sequence: int
    """Where the first of its samples lies, also when filters have left that one out: what is restored is the whole
    group, for its deadline.
    """
    filtered: bool = False
    """Whether the filters were asked about it."""

    @classmethod
    def of(cls, group_id: str, partial: PartialGroup, *, policy: str) -> Group | None:
        """None when one sample cannot be trained: it spoils its group, because advantages compare all of them."""
        samples = [sample for _, sample in sorted(partial.samples.items()) if sample is not None]
        if len(samples) < len(partial.samples):
            return None
        return cls(
            group_id=group_id,
            policy=policy,
            role=partial.role,
            prompt_id=partial.prompt_id,
            samples=tuple(samples),
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

    def reduced_to(self, indices: Iterable[int]) -> Group:
        """Without all samples but these. Its deadline stays: what is left may be younger, and is no less urgent."""
        kept = frozenset(indices)
        samples = tuple(sample for sample in self.samples if sample.index in kept)
        return msgspec.structs.replace(self, samples=samples, filtered=True)

    def outcome(self) -> GroupOutcome:
        """What curators, filters and selections see of it."""
        return GroupOutcome(
            policy=self.policy,
            role=self.role,
            prompt_id=self.prompt_id,
            samples=tuple(sample.outcome() for sample in self.samples),
        )


class Allotment(msgspec.Struct, frozen=True, gc=False):
    """A group in a step of a trainer."""

    group: Group
    uses: int
    """How often this trainer had it before."""


def all_samples(allotments: Iterable[Allotment]) -> list[Sample]:
    return [sample for allotment in allotments for sample in allotment.group.samples]


def mean_reward(allotments: Sequence[Allotment]) -> float:
    rewards = [sample.reward for sample in all_samples(allotments)]
    return sum(rewards) / len(rewards)
