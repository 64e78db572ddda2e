"""The rollout fleet of a job as the autoscaler sees it: pools, their sizes, and what one replica of each is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

Targets = Mapping[str, int]
"""Replicas by pool."""

Weights = Mapping[str, float]
"""By pool, what one replica produces, in any unit that all pools share: devices, or samples a second."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    name: str
    desired: int
    """Replicas asked for, those that are still on their way included."""
    ready: int
    """Replicas that take tasks."""
    min_replicas: int = 0
    max_replicas: int | None = None
    paused: bool = False
    """Suspended, deleted or out of reach: it keeps its size, whatever happens."""
    devices: int = 1
    """Accelerators of one replica."""
    cost: float | None = None
    """Price of one replica; None where the manifest has none, and devices are counted instead."""
    priority: int = 0
    startup_s: float | None = None
    """Seconds from creation to readiness of its pods, the median; None before there has been any."""

    @property
    def least(self) -> int:
        return self.desired if self.paused else self.min_replicas

    @property
    def most(self) -> int | None:
        return self.desired if self.paused else self.max_replicas


@dataclass(frozen=True, kw_only=True)
class Fleet:
    pools: tuple[Pool, ...]

    @property
    def sizes(self) -> dict[str, int]:
        return {pool.name: pool.desired for pool in self.pools}

    @property
    def ready(self) -> dict[str, int]:
        return {pool.name: pool.ready for pool in self.pools}

    @property
    def total(self) -> int:
        return sum(pool.desired for pool in self.pools)

    def capacity(self, replicas: Mapping[str, float], weights: Weights) -> float:
        """What so many replicas of the pools produce. Each pool serves every policy, so it is the same for all."""
        return sum(replicas.get(pool.name, 0) * weights[pool.name] for pool in self.pools)

    def startup_s(self) -> float:
        """How long new capacity takes to arrive; 0 where that is not known."""
        return max((pool.startup_s or 0.0 for pool in self.pools if not pool.paused), default=0.0)


def device_weights(fleet: Fleet) -> dict[str, float]:
    return {pool.name: float(pool.devices) for pool in fleet.pools}


def speed_weights(fleet: Fleet, speeds: Mapping[str, float]) -> dict[str, float]:
    """By measured speed of a replica. A pool without one is taken to be as fast, device by device, as the others."""
    known = {pool.name: speeds[pool.name] for pool in fleet.pools if speeds.get(pool.name, 0.0) > 0}
    if not known:
        return device_weights(fleet)
    usual = fmean(known[pool.name] / pool.devices for pool in fleet.pools if pool.name in known)
    return {pool.name: known.get(pool.name, usual * pool.devices) for pool in fleet.pools}


def best_first(fleet: Fleet, weights: Weights) -> tuple[Pool, ...]:
    """Pools in the order in which they fill; they drain in the opposite one. Priority decides, then production for the
    money.
    """
    return tuple(
        sorted(
            fleet.pools,
            key=lambda pool: (
                -pool.priority,
                -weights[pool.name] / max(1e-9, pool.devices if pool.cost is None else pool.cost),
                pool.name,
            ),
        )
    )
