"""Prompt groups of one policy on their way from the first arrived sample to the step that trains them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from trimtab.dataflow.outcomes import GroupOutcome, SampleOutcome
from trimtab.fabric.wire.header import TrajectoryHeader


class UntrainableSample(ValueError):
    """A sample without reward or without trained tokens was about to be used as if it had them."""


@dataclass(frozen=True)
class Sample:
    """One arrived trajectory: where it lies, and its header."""

    sequence: int
    trajectory_id: str
    header: TrajectoryHeader

    @property
    def trainable(self) -> bool:
        return self.header.reward is not None and self.header.oldest_version is not None

    @property
    def reward(self) -> float:
        if self.header.reward is None:
            raise UntrainableSample(f"{self.trajectory_id} failed ({self.header.error}) and has no reward")
        return self.header.reward

    @property
    def oldest_version(self) -> int:
        if self.header.oldest_version is None:
            raise UntrainableSample(f"{self.trajectory_id} has no trained token")
        return self.header.oldest_version

    @property
    def newest_version(self) -> int:
        if self.header.newest_version is None:
            raise UntrainableSample(f"{self.trajectory_id} has no trained token")
        return self.header.newest_version

    def outcome(self) -> SampleOutcome:
        header = self.header
        if header.finish is None:
            raise UntrainableSample(f"{self.trajectory_id} failed ({header.error})")
        return SampleOutcome(
            index=header.group_index,
            reward=self.reward,
            finish=header.finish,
            prompt_tokens=header.prompt_tokens,
            response_tokens=header.response_tokens,
            trained_tokens=header.trained_tokens,
            turns=header.turns,
            oldest_version=self.oldest_version,
            newest_version=self.newest_version,
        )


@dataclass
class PartialGroup:
    """The samples of one prompt for one policy, as far as they have arrived."""

    size: int
    samples: dict[int, Sample] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.samples) == self.size

    @property
    def trainable(self) -> bool:
        """One failed sample spoils its group: advantages compare all of them."""
        return all(sample.trainable for sample in self.samples.values())

    @property
    def tokens(self) -> int:
        return sum(sample.header.tokens for sample in self.samples.values())


@dataclass(frozen=True, kw_only=True)
class Group:
    """A complete group, all of whose samples can be trained."""

    group_id: str
    samples: tuple[Sample, ...]
    """By group index."""
    oldest_version: int
    """Of the oldest trained token of any sample: the deadline of the group, which is trained or not as one."""
    arrival: int
    """Sequence of the sample that came last."""
    tokens: int
    sifted: bool = False
    """Whether the filters were asked about it."""

    @classmethod
    def of(cls, group_id: str, partial: PartialGroup) -> Group:
        samples = tuple(partial.samples[index] for index in sorted(partial.samples))
        return cls(
            group_id=group_id,
            samples=samples,
            oldest_version=min(sample.oldest_version for sample in samples),
            arrival=max(sample.sequence for sample in samples),
            tokens=partial.tokens,
        )

    def reduced_to(self, indices: Iterable[int]) -> Group:
        """Without all samples but these. Its deadline stays: what is left may be younger, and is no less urgent."""
        kept = frozenset(indices)
        samples = tuple(sample for sample in self.samples if sample.header.group_index in kept)
        return replace(self, samples=samples, tokens=sum(sample.header.tokens for sample in samples), sifted=True)

    def outcome(self) -> GroupOutcome:
        """What curators and filters see of it."""
        first = self.samples[0].header
        return GroupOutcome(
            policy=first.policy,
            role=first.role,
            prompt_id=first.prompt_id,
            samples=tuple(sample.outcome() for sample in self.samples),
        )


def all_samples(groups: Iterable[Group]) -> list[Sample]:
    return [sample for group in groups for sample in group.samples]


def mean_reward(groups: Sequence[Group]) -> float:
    rewards = [sample.reward for sample in all_samples(groups)]
    return sum(rewards) / len(rewards)
