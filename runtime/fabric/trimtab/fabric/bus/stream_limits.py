"""What all streams and buckets of a job may take, and on how many servers they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Servers that a stream may be on; neither a cluster nor tags: any."""

    cluster: str | None = None
    tags: tuple[str, ...] = ()

    def config(self) -> dict[str, Any] | None:
        found = {"cluster": self.cluster, "tags": list(self.tags)}
        return {name: value for name, value in found.items() if value} or None


ANYWHERE = Placement()


@dataclass(frozen=True, kw_only=True)
class StreamLimits:
    """What a job's streams may take, and where they are."""

    replicas: int = 1
    placement: Placement = ANYWHERE
    max_bytes: int | None = None
    """Of tasks, trajectories and columns together, in one replica."""
    max_messages: int | None = None
    """Of trajectories, and of columns."""
