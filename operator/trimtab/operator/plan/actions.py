"""What a plan asks an executor to do."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.operator.plan.pods import PodPlan


@dataclass(frozen=True)
class StartPod:
    pod: PodPlan


@dataclass(frozen=True)
class StopPod:
    """SIGTERM, the grace period, SIGKILL. Stopping a pod that is stopping changes nothing."""

    name: str
    reason: str


@dataclass(frozen=True)
class RemovePod:
    """Forget a pod that has ended, so that its name is free."""

    name: str


Action = StartPod | StopPod | RemovePod
