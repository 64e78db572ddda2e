"""What a trajectory costs the service when few wait before it and when many do, through NATS as in a job."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.report import note
from benchmarks.trajectories import ranks, workers
from benchmarks.trajectories.payloads import POLICY
from benchmarks.trajectories.pod import DataflowPod, dataflow_pod
from benchmarks.trajectories.rounds import Scene
from trimtab.embedded.server import poll_until

_BATCH = 1000
_TOKENS = 16
"""The service never sees a payload, so these are small."""
_DEADLINE_S = 240.0
_QUIET_S = 0.5
_QUIET_CPU_S = 0.02


@dataclass(frozen=True, kw_only=True)
class QueueCost:
    """Of the dataflow process."""

    queued: int
    cpu_s_per_100k: float
    resident_bytes_per_100k: float
    """By which it grew while they were queued."""


def measure_queue(scene: Scene, *, queued: int, total: int, parts: int = 1) -> QueueCost:
    """Queue so many rows of episodes with `parts` each, then take all of them in batches; again until `total` have
    passed, as few cost too little time to be read off a process.
    """
    job = f"queue-{queued}-{parts}"
    scene.workers.ask(
        workers.Prepare(job=job, tokens=_TOKENS, batch_size=_BATCH, count=total, parts=parts), deadline_s=_DEADLINE_S
    )
    with dataflow_pod(job, batch_size=_BATCH, folder=scene.folder, server=scene.server) as pod:
        come_to_rest(pod)
        before = pod.usage()
        grown = 0
        for first in range(0, total, queued):
            empty = pod.usage().resident_bytes
            scene.workers.ask(
                workers.Publish(subject=pod.topology.trajectory_subject(POLICY), first=first, count=queued),
                deadline_s=_DEADLINE_S,
            )
            come_to_rest(pod)
            grown = max(grown, pod.usage().resident_bytes - empty)
            steps = range(first // (parts * _BATCH), (first + queued) // (parts * _BATCH))
            scene.ranks.ask(ranks.Lease(topology=pod.topology, steps=steps), deadline_s=_DEADLINE_S)
        come_to_rest(pod)
        cpu_s = pod.usage().since(before).cpu_s
    cost = QueueCost(queued=queued, cpu_s_per_100k=cpu_s / total * 1e5, resident_bytes_per_100k=grown / queued * 1e5)
    note(f"{cost}")
    return cost


def come_to_rest(pod: DataflowPod) -> None:
    """Return once the service has nothing to do: all that was published is taken in, and all tasks are out."""
    last = (time.monotonic(), pod.usage().cpu_s)

    def rests() -> bool:
        nonlocal last
        now, cpu_s = time.monotonic(), pod.usage().cpu_s
        if now - last[0] < _QUIET_S:
            return False
        idle = cpu_s - last[1] <= _QUIET_CPU_S
        last = (now, cpu_s)
        return idle

    poll_until(
        rests,
        timeout_s=_DEADLINE_S,
        failure=lambda: TimeoutError(f"the dataflow of {pod.job} did not come to rest within {_DEADLINE_S:.0f} s"),
    )
