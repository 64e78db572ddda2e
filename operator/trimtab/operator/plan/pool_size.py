"""How many pods of a pool may live while a changed template is rolled out: numbers from counts and percentages."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.api.pool import Update
from trimtab.operator.autoscale.fleet import count_of


@dataclass(frozen=True, kw_only=True)
class Room:
    """While pods of an older template are there: `most` may live at once, and `fewest` must be ready."""

    most: int
    fewest: int


def room(update: Update, *, replicas: int) -> Room:
    surge = count_of(update.max_surge, replicas, up=True)
    missing = count_of(update.max_unavailable, replicas, up=False)
    if surge == 0 and missing == 0:
        # 25 % of 3 pods rounds down to none, and no pod could ever be replaced.
        missing = 1
    return Room(most=replicas + surge, fewest=max(0, replicas - missing))
