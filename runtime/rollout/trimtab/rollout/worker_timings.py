"""For how long a worker waits for what. Times that users choose, such as leases and grace periods, are in a job's
manifest.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.fabric.backoff import FullJitter

_PULL_BACKOFF = FullJitter(base_s=1.0, cap_s=10.0)


@dataclass(frozen=True, kw_only=True)
class WorkerTimings:
    """Of the worker, and of what serves its tasks."""

    pull_wait_s: float = 2.0
    """For a task, before it looks again whether it may have any."""
    retry_delay_s: float = 1.0
    """Before a task is given out again."""
    pull_backoff: FullJitter = _PULL_BACKOFF
    """Before the bus is asked again for tasks."""
    weights_poll_s: float = 0.1
    """Between looks at the weights while they hold the worker or a task back."""
    behind_warning_s: float = 10.0
    """Every swap leaves a worker behind for a moment. One that is still behind after this has trouble."""
    hand_back_s: float = 5.0
    """Of the grace period, kept for handing back what is not finished: whoever kills us at its end does not wait."""
    publish_deadline_s: float = 60.0
    ack_deadline_s: float = 30.0


WORKER_TIMINGS = WorkerTimings()
