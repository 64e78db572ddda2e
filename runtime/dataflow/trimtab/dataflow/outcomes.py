"""What the dataflow sees of trajectories and finished groups: headers only, because payloads never come here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import structlog

from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.wire.column import ColumnHeader, parse_column_headers
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import TrajectoryHeader, parse_headers
from trimtab.fabric.wire.trajectory import Finish

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class SampleOutcome:
    """One row of an episode."""

    index: int
    """Of its episode in the group."""
    part: int = 0
    """Of the row in its episode."""
    reward: float
    finish: Finish
    prompt_tokens: int
    response_tokens: int
    trained_tokens: int
    turns: int
    oldest_version: int
    newest_version: int
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """What the workflow says that the reward is made of, by name."""


@dataclass(frozen=True, kw_only=True)
class EpisodeOutcome:
    """One episode, with all its rows of the role."""

    index: int
    rows: tuple[SampleOutcome, ...]
    """By part."""

    @property
    def reward(self) -> float:
        """The mean of its rows'."""
        return sum(row.reward for row in self.rows) / len(self.rows)

    @property
    def reward_parts(self) -> dict[str, float]:
        """By name, the mean over the rows that have it."""
        return mean_parts(row.reward_parts for row in self.rows)

    @property
    def trained_tokens(self) -> int:
        return sum(row.trained_tokens for row in self.rows)

    @property
    def truncated(self) -> bool:
        """Whether a row ended because there was no room."""
        return any(row.finish is Finish.LENGTH for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class GroupOutcome:
    """All episodes of one prompt for one policy that have rows, none of which failed."""

    policy: str
    role: str
    prompt_id: str
    label: str = ""
    """The prompt's value in data.routeColumn."""
    rows: tuple[SampleOutcome, ...]
    """By index and part."""

    @cached_property
    def episodes(self) -> tuple[EpisodeOutcome, ...]:
        """By index."""
        return tuple(
            EpisodeOutcome(index=index, rows=tuple(rows))
            for index, rows in groupby(self.rows, key=lambda row: row.index)
        )

    @cached_property
    def rewards(self) -> tuple[float, ...]:
        """Of the episodes, by index."""
        return tuple(episode.reward for episode in self.episodes)

    @property
    def is_zero_variance(self) -> bool:
        """All rewards equal: compared with one another, the episodes say nothing."""
        return len(set(self.rewards)) <= 1


def mean_parts(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """By name, the mean over those that have it."""
    found: dict[str, list[float]] = {}
    for one in parts:
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def header_of(delivery: Delivery) -> tuple[str, TrajectoryHeader] | None:
    """Id and header; None when there is no reading it, in recovery as on arrival, so that both come to the same."""
    try:
        return parse_headers(delivery.headers)
    except WireError as error:
        _log.error("trajectory_unreadable", sequence=delivery.sequence, reason=str(error))
        return None


def column_header_of(delivery: Delivery) -> ColumnHeader | None:
    """None when there is no reading it, as with the headers of rows."""
    try:
        return parse_column_headers(delivery.headers)
    except WireError as error:
        _log.error("column_unreadable", sequence=delivery.sequence, reason=str(error))
        return None
