"""What a selection is shown of the books for one choice."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.dataflow.ledger.trainer_books import TrainerBooks
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.dataflow.selection.contract import Used


@dataclass(frozen=True, kw_only=True)
class StepOffer:
    """A view, good until the books change."""

    books: TrainerBooks
    batch: int
    places: int
    seed: int
    max_staleness: int
    versions: Mapping[str, int]
    """By stream, the version that its samples are compared with."""

    @property
    def policy(self) -> str:
        return self.books.policy

    @property
    def step(self) -> int:
        return self.books.next_step

    @property
    def filled(self) -> int:
        return self.books.filled

    @property
    def fresh_before(self) -> int:
        return self.books.fresh_groups

    @property
    def chance(self) -> random.Random:
        return random.Random(f"{self.seed}/{self.policy}/{self.step}/{self.filled}")  # noqa: S311 - a lottery, not a secret

    def waiting(self, stream: str) -> int:
        return self.books.buffers[stream].count(not_before=self.oldest_allowed(stream))

    def earliest(self, stream: str, count: int) -> Sequence[str]:
        return self.books.buffers[stream].first(count, not_before=self.oldest_allowed(stream))

    def used(self) -> Sequence[Used]:
        return [
            Used(
                group_id=used.group.group_id,
                stream=used.group.policy,
                uses=used.uses,
                last_step=used.last_step,
                age=max(0, self.versions[used.group.policy] - used.group.oldest_version),
                episodes=used.group.episodes,
            )
            for used in self.books.pool
        ]

    def outcome(self, group_id: str) -> GroupOutcome:
        group = self.books.waiting_group(group_id)
        return (self.books.pool.used(group_id).group if group is None else group).outcome()

    def oldest_allowed(self, stream: str) -> int:
        return self.versions[stream] - self.max_staleness

    def stale(self) -> tuple[str, ...]:
        """Groups that are too old for this step and any later one."""
        return tuple(
            group_id
            for stream, buffer in self.books.buffers.items()
            for group_id in buffer.older(self.oldest_allowed(stream))
        )
