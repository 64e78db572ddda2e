"""What the dataflow sees of trajectories and finished groups: headers only, because payloads never come here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import structlog

from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import TrajectoryHeader, parse_headers
from trimtab.fabric.wire.trajectory import Finish

_log = structlog.get_logger(__name__)


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


def header_of(delivery: Delivery) -> tuple[str, TrajectoryHeader] | None:
    """Id and header; None when there is no reading it, in recovery as on arrival, so that both come to the same."""
    try:
        return parse_headers(delivery.headers)
    except WireError as error:
        _log.error("trajectory_unreadable", sequence=delivery.sequence, reason=str(error))
        return None
