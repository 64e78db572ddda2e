"""What curators and filters see of a finished group: headers only, because payloads never come here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trimtab.fabric.wire.trajectory import Finish


@dataclass(frozen=True, kw_only=True)
class SampleOutcome:
    """One trajectory of a group."""

    index: int
    reward: float
    finish: Finish
    prompt_tokens: int
    response_tokens: int
    trained_tokens: int
    turns: int
    oldest_version: int
    newest_version: int


@dataclass(frozen=True, kw_only=True)
class GroupOutcome:
    """All episodes of one prompt for one policy, none of which failed, by index."""

    policy: str
    role: str
    prompt_id: str
    samples: tuple[SampleOutcome, ...]

    @cached_property
    def rewards(self) -> tuple[float, ...]:
        return tuple(sample.reward for sample in self.samples)

    @property
    def is_zero_variance(self) -> bool:
        """All rewards equal: compared with one another, the samples say nothing."""
        return len(set(self.rewards)) <= 1
