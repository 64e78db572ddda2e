"""How many tasks a worker may have, by how old its samples will be when they are trained on."""

from __future__ import annotations


def allowance(max_tasks: int, *, lag: int, versions_per_group: float, max_staleness: int) -> int:
    """The share of `max_tasks` that has a chance to be trained on.

    `lag` is by how many versions the engine is behind. What is left of the staleness bound is the room that samples
    begun now have: none, and they are too old before they begin. Up to half of the bound is the ordinary course of
    things, with weights on their way all the time. Fewer versions than pass while a group is rolled out, and most
    samples will be too old when they are finished. As long as there is room, one task goes on: it shows when things
    have become better.
    """
    room = max_staleness + 1 - lag
    if room <= 0:
        return 0
    in_time = min(1.0, room / versions_per_group) if versions_per_group > 0 else 1.0
    fresh = min(1.0, 2 * room / (max_staleness + 1))
    return max(1, int(max_tasks * fresh * in_time))
