"""Prompt groups of one policy on their way from the first arrived sample to the step that trains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.fabric.wire.header import TrajectoryHeader


@dataclass(frozen=True)
class Sample:
    """One arrived trajectory: where it lies, and its header."""

    sequence: int
    trajectory_id: str
    header: TrajectoryHeader


@dataclass
class Group:
    """The samples of one prompt for one policy."""

    group_id: str
    size: int
    samples: dict[int, Sample] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.samples) == self.size

    @property
    def failed(self) -> bool:
        return any(sample.header.error is not None for sample in self.samples.values())

    @property
    def oldest_version(self) -> int:
        """Of the oldest trained token of any sample: the deadline of the group, which is trained or not as one."""
        return min(sample.header.oldest_version or 0 for sample in self.samples.values())

    @property
    def tokens(self) -> int:
        return sum(sample.header.tokens for sample in self.samples.values())

    @property
    def arrival(self) -> int:
        return max(sample.sequence for sample in self.samples.values())

    def ordered(self) -> tuple[Sample, ...]:
        return tuple(self.samples[index] for index in sorted(self.samples))


def earliest_deadline_first(groups: list[Group]) -> list[Group]:
    """Groups whose oldest token expires first come first: first-in-first-out would favour short samples."""
    return sorted(groups, key=lambda group: (group.oldest_version, group.arrival))


def choose(
    groups: list[Group], *, step: int, max_staleness: int, wanted: int
) -> tuple[list[Group], list[Group]] | None:
    """The groups for a step and those that are too stale for it or any later one; None while there are too few.

    The trainer's version at step s is s, so a group whose oldest token has version v is s - v stale.
    """
    stale = [group for group in groups if step - group.oldest_version > max_staleness]
    fresh = [group for group in groups if step - group.oldest_version <= max_staleness]
    if len(fresh) < wanted:
        return None
    return earliest_deadline_first(fresh)[:wanted], stale


def mean_reward(groups: Sequence[Group]) -> float:
    rewards = [sample.header.reward or 0.0 for group in groups for sample in group.samples.values()]
    return sum(rewards) / len(rewards)
