"""What a plan asks an executor to do."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.operator.plan.pods import PodPlan


@dataclass(frozen=True)
class StartPod:
    pod: PodPlan


@dataclass(frozen=True)
class ReleasePod:
    """Let a pod run that was made to wait for the rest of its gang."""

    name: str


@dataclass(frozen=True)
class StopPod:
    """SIGTERM, the grace period, SIGKILL. A worker drains in that time. Stopping a pod that is stopping changes
    nothing.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class RemovePod:
    """Forget a pod that has ended, so that its name is free."""

    name: str


@dataclass(frozen=True)
class ReplacePod:
    """Give a pod up of which nothing is heard, without waiting for its node, and make another one of its name, on
    another node if there is one. It may still run: only for pods that cannot do harm beside their successor.
    """

    name: str
    reason: str
    pod: PodPlan
    avoided_node: str | None = None


@dataclass(frozen=True)
class PutPool:
    """Make it, or bring its spec up to date."""

    pool: RolloutPool


@dataclass(frozen=True)
class PutTrainer:
    trainer: Trainer


@dataclass(frozen=True)
class DeletePool:
    name: str


@dataclass(frozen=True)
class DeleteJob:
    """Its time after the end is over."""


PodAction = StartPod | ReleasePod | StopPod | RemovePod | ReplacePod
Action = PodAction | PutPool | PutTrainer | DeletePool | DeleteJob
