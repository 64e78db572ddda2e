"""What a pod does, in words, from its heartbeat."""

from __future__ import annotations

from trimtab.cli.ui.shown import Pod
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State


def pod_of(heartbeat: MemberHeartbeat) -> Pod:
    return Pod(
        id=heartbeat.member_id,
        role=str(heartbeat.role),
        pool=heartbeat.pool or "",
        engine=heartbeat.engine or "",
        state=str(heartbeat.state),
        doing=doing(heartbeat),
        versions=heartbeat.versions,
        in_flight=heartbeat.in_flight,
        capacity=heartbeat.capacity,
        samples_per_second=heartbeat.samples_per_second,
        tokens_per_second=heartbeat.tokens_per_second,
        completed=heartbeat.completed,
        failures=heartbeat.failures,
        started_at=heartbeat.started_at,
    )


def doing(pod: MemberHeartbeat) -> str:
    match pod.role, pod.state:
        case _, State.STARTING:
            return "starting"
        case Role.ROLLOUT, State.DRAINING | State.STOPPING:
            return f"finishes {_tasks(pod.in_flight)}, takes no more"
        case Role.ROLLOUT, _ if pod.allowance is not None and pod.allowance < pod.capacity:
            return f"held to {_tasks(pod.allowance)}: its weights are behind"
        case Role.ROLLOUT, State.PAUSED:
            return "paused"
        case Role.ROLLOUT, _:
            return f"runs {_tasks(pod.in_flight)}" if pod.in_flight else "waits for tasks"
        case Role.TRAINER, _:
            return " · ".join(f"{policy}: {made} steps made" for policy, made in sorted(pod.versions.items()))
        case Role.DATAFLOW, _:
            return "hands out tasks and batches"


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
