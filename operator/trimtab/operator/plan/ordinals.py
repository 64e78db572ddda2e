"""Numbers for pods that are interchangeable. A pod that is on its way out still has its name."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count as count_up
from itertools import islice

from trimtab.api import names


def free_ordinals(pool: str, taken: Collection[str], *, count: int) -> list[int]:
    """The lowest that no pod of the pool has."""
    in_use = set(taken)
    free = (number for number in count_up() if names.rollout_pod_name(pool, number) not in in_use)
    return list(islice(free, max(0, count)))
