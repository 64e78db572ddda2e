"""How many more prompt groups may be in flight, so that nothing sampled now is too stale when it is trained.

In samples, capacity = (maxStaleness + version + 1) · batch - (accepted + running). What was accepted is either granted
to a step or waits in the buffer, so this is the same as: the steps that may still be granted before the trainer moves
on, times what one of them takes, less what waits and what is running.
"""

from __future__ import annotations

from collections.abc import Callable


def missing_groups(*, wanted: int, buffered: int, running: int, needed: Callable[[int], int]) -> int:
    """Groups that may still be asked for. `wanted` is what the steps ahead take; `needed` says how many it takes to
    fill so many places where a filter will leave some out.
    """
    return max(0, needed(max(0, wanted - buffered)) - running)


def tasks_for(missing: int, *, groups_per_task: int, idle: bool) -> int:
    """Tasks that bring no more groups than these. When nothing is under way a rest is worth a task of its own: a step
    would wait for it for ever.
    """
    tasks = missing // groups_per_task
    return 1 if tasks == 0 and missing > 0 and idle else tasks
