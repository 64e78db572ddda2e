"""What a run's rollout replicas have cost, by the costPerHour of their pools."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from trimtab.api.job import RLJob
from trimtab.cli.chronicle.records import Began, Ended, Fleet, Record

_HOUR_S = 3600.0


def cost_per_hour(job: RLJob, ready: Mapping[str, int]) -> float | None:
    """Of the replicas that take tasks, in pools that have a price; None where no pool has one."""
    prices = {pool.name: pool.cost_per_hour for pool in job.spec.pools if pool.cost_per_hour is not None}
    return sum(prices.get(pool, 0.0) * count for pool, count in ready.items()) if prices else None


class Spending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Up to the newest record."""

    total: float = 0.0
    per_hour: float | None = None
    """Since then; None where no pool has a price, and while the job does not run."""
    at: float = 0.0

    def after(self, record: Record) -> Spending:
        if isinstance(record, Began):
            # A run that was killed has left no end. What was not heard of it is not counted.
            return Spending(total=self.total, at=record.at)
        at = max(self.at, record.at)
        per_hour = self.per_hour
        if isinstance(record, Fleet):
            per_hour = record.cost_per_hour
        if isinstance(record, Ended):
            per_hour = None
        total = self.total + (self.per_hour or 0.0) * (at - self.at) / _HOUR_S
        return Spending(total=total, per_hour=per_hour, at=at)


NOTHING = Spending()
