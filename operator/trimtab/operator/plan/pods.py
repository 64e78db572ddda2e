"""A pod as the plan describes it, for Kubernetes and for one machine alike.

Arguments and values may hold $(NAME), as in a Kubernetes pod: the executor fills in the ports and addresses it chose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trimtab.api.scalars import Resources, SecretKey
from trimtab.fabric.wire.member import SandboxLayers
from trimtab.operator.plan.troubles import Trouble


class Restart(StrEnum):
    """ALWAYS: each container is started again by itself. NEVER: the plan decides about the pod as a whole."""

    ALWAYS = "Always"
    NEVER = "Never"


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretKey] = field(default_factory=dict)
    """Environment variables whose values only the executor learns."""
    sidecar: bool = False
    """Ends after the others have: a worker that drains still needs its engine."""
    sealed: bool = False
    """Has nothing of the others: no environment, no files but $(SANDBOX), which it shares with the worker."""
    before: bool = False
    """Has ended well before the others begin. One machine has done what it does before it makes pods."""
    image: str | None = None
    """Another than the pod's."""
    ports: tuple[str, ...] = ()
    """Names of the ports it needs on loopback: the executor sets $(NAME) for all containers of the pod."""
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True, kw_only=True)
class PodPlan:
    name: str
    role: str
    containers: tuple[ContainerPlan, ...]
    restart: Restart
    grace_s: float
    owner: str
    """The RLJob, RolloutPool or Trainer it belongs to."""
    runtime_class: str | None = None
    gang: bool = False
    """The pods of its owner live and die together, and find each other at $(MASTER_ADDR). An executor that may be
    refused a pod makes all of them before it lets one run."""
    attempt: int = 0
    template: Mapping[str, object] = field(default_factory=dict)
    """The manifest's pod template, which Kubernetes lays over the rest; one machine has no use for it."""
    revision: str = ""
    """What the pod was made from. A running pod with another one is out of date."""


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, kw_only=True)
class ObservedPod:
    """What the executor sees of a pod it has."""

    name: str
    uid: str = ""
    phase: Phase
    owner: str = ""
    attempt: int = 0
    revision: str = ""
    gated: bool = False
    """It waits for the rest of its gang, and nothing of it has run."""
    scheduled: bool = True
    ready: bool = True
    suspect: bool = False
    """Its heartbeats are late."""
    fell_silent: bool = False
    """It was heard every second, and is not any more, while others are."""
    unheard: bool = False
    """It should have been heard for long, and never was."""
    node: str | None = None
    """Where it runs, if that is known."""
    tokens_per_second: float = 0.0
    """What it last said of itself."""
    sandbox: SandboxLayers | None = None
    """What it last said of its sandbox, where it has one."""
    created_at: float = 0.0
    ready_at: float | None = None
    """Since when it is ready, where the executor knows."""
    finished_at: float | None = None
    stopping: bool = False
    disrupted: bool = False
    """Preempted, evicted or lost with its node: no fault of its own."""
    misconfigured: bool = False
    """It says itself that starting it again would not help."""
    exit_code: int | None = None
    message: str = ""
    """Why it failed, as far as the executor knows."""
    killed_by: str = ""
    """The word for what ended it, where that was not its own doing, such as OOMKilled or Evicted."""
    failed_container: str | None = None
    crashed_at: float | None = None
    """When one of its containers failed last, also in a pod that goes on."""
    trouble: Trouble | None = None
    """What keeps it from running just now."""

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def alive(self) -> bool:
        """There to stay, as far as we know."""
        return not self.ended and not self.stopping
