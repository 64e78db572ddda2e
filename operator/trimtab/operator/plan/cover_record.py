"""What a pool has taken over from pools in lost clusters, written down on it so that exactly that is undone."""

from __future__ import annotations

import json
from collections.abc import Mapping

from trimtab.api.model import GROUP
from trimtab.api.pool import RolloutPool

COVERS = f"{GROUP}/covers"
"""An annotation on a RolloutPool: for whom it has more pods than it was asked for, and how many."""

Cover = Mapping[str, int]
"""Pods by the name of the lost pool."""


def recorded_cover(pool: RolloutPool) -> dict[str, int]:
    """What was last written down; nothing where somebody has written something else."""
    try:
        written = json.loads(pool.metadata.annotations.get(COVERS, "{}"))
    except ValueError:
        return {}
    if not isinstance(written, dict):
        return {}
    return {name: count for name, count in written.items() if isinstance(count, int) and count > 0}


def written_cover(cover: Cover) -> str:
    return json.dumps(dict(cover), sort_keys=True)


def uncovered_replicas(pool: RolloutPool) -> int:
    """What it was asked for, without what it covers."""
    return max(0, pool.spec.replicas - sum(recorded_cover(pool).values()))
