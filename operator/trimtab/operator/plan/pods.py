"""A pod as the plan describes it, for Kubernetes and for one machine alike.

Arguments and values may hold $(NAME), as in a Kubernetes pod: the executor fills in the ports and addresses it chose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trimtab.api.scalars import SecretKey


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
    ports: tuple[str, ...] = ()
    """Names of the ports it needs on loopback: the executor sets $(NAME) for all containers of the pod."""


@dataclass(frozen=True, kw_only=True)
class PodPlan:
    name: str
    role: str
    containers: tuple[ContainerPlan, ...]
    restart: Restart
    grace_s: float
    group: str | None = None
    """Pods of one group live and die together."""
    attempt: int = 0


class Phase(StrEnum):
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, kw_only=True)
class ObservedPod:
    """What the executor sees of a pod it has."""

    name: str
    phase: Phase
    attempt: int = 0
    group: str | None = None
    finished_at: float | None = None
    stopping: bool = False
    misconfigured: bool = False
    """It says itself that starting it again would not help."""
    message: str = ""
    """Why it failed, as far as the executor knows."""
