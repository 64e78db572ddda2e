"""What is worth an event: the difference between two statuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.api.conditions import Condition, ConditionType, LastError
from trimtab.api.job import RLJobStatus
from trimtab.api.live_settings import changes
from trimtab.api.pool import RolloutPoolStatus
from trimtab.api.trainer import TrainerStatus
from trimtab.kube.events import EventType
from trimtab.operator import event_reasons as reasons
from trimtab.operator.conditions import find
from trimtab.operator.plan.reachability import is_said_lost
from trimtab.operator.plan.troubles import PASSING

Status = RLJobStatus | RolloutPoolStatus | TrainerStatus


@dataclass(frozen=True, kw_only=True)
class Transition:
    type: EventType = "Normal"
    reason: str
    message: str


def transitions(before: Status | None, after: Status) -> Iterator[Transition]:
    known = () if before is None else before.conditions
    yield from _acceptance(known, after.conditions)
    yield from _suspension(known, after.conditions)
    yield from _end(known, after.conditions)
    yield from _reach(known, after.conditions)
    yield from _error(None if before is None else before.last_error, after)
    if isinstance(after, RLJobStatus):
        yield from _changed_settings(before if isinstance(before, RLJobStatus) else RLJobStatus(), after)
        yield from _anchored(before if isinstance(before, RLJobStatus) else RLJobStatus(), after)
    if isinstance(after, TrainerStatus) and after.restarts > (
        before.restarts if isinstance(before, TrainerStatus) else 0
    ):
        yield Transition(
            reason=reasons.TRAINER_RESTARTED,
            message=f"attempt {after.attempt} begins; {after.restarts_counted} restarts count against maxRestarts",
        )


def _error(before: LastError | None, after: Status) -> Iterator[Transition]:
    """What keeps a pod waiting is told once, however often the words for it change."""
    error = after.last_error
    if error is None or error == before:
        return
    pod = f"{error.pod}: " if error.pod else ""
    if error.reason not in PASSING:
        yield Transition(type="Warning", reason=reasons.POD_FAILED, message=f"{pod}{error.reason} {error.message}")
    elif before is None or (before.reason, before.pod) != (error.reason, error.pod):
        accepted = find(after.conditions, ConditionType.ACCEPTED)
        if error.reason != reasons.POD_REFUSED or accepted is None or accepted.status != "False":
            yield Transition(type="Warning", reason=reasons.POD_WAITS, message=f"{pod}{error.reason} {error.message}")


def _changed_settings(before: RLJobStatus, after: RLJobStatus) -> Iterator[Transition]:
    if before.settings is None or after.settings is None or not (found := changes(before.settings, after.settings)):
        return
    yield Transition(
        reason=reasons.SETTINGS_CHANGED,
        message=f"{'; '.join(found)}. Pods that read it start again: trainers go on from the checkpoint that they write"
        " now, and no sample is lost or trained twice",
    )


def _anchored(before: RLJobStatus, after: RLJobStatus) -> Iterator[Transition]:
    if after.anchored_anew > before.anchored_anew:
        given_up = after.given_up_groups - before.given_up_groups
        yield Transition(
            type="Warning",
            reason=reasons.ANCHORED_ANEW,
            message="the ledger or a trainer's checkpoints had lost their end; the job goes on with the step that the"
            f" trainer proved, {given_up} prompt groups are given up, and none is trained twice",
        )


def _acceptance(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> Iterator[Transition]:
    was, now = find(before, ConditionType.ACCEPTED), find(after, ConditionType.ACCEPTED)
    if (
        now is not None
        and now.status == "False"
        and (was is None or (was.status, was.message) != ("False", now.message))
    ):
        known = (reasons.NAME_TAKEN, reasons.POD_REFUSED, reasons.UNREADABLE, reasons.FAULTED)
        reason = now.reason if now.reason in known else reasons.NOT_ACCEPTED
        yield Transition(type="Warning", reason=reason, message=now.message)


def _suspension(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> Iterator[Transition]:
    was, now = find(before, ConditionType.SUSPENDED), find(after, ConditionType.SUSPENDED)
    if was is None or now is None or was.status == now.status:
        return
    if now.status == "True":
        yield Transition(reason=reasons.SUSPENDED, message=now.message or "all pods have ended")
    else:
        yield Transition(reason=reasons.RESUMED, message="pods are started again")


def _reach(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> Iterator[Transition]:
    was, now = find(before, ConditionType.REACHABLE), find(after, ConditionType.REACHABLE)
    if now is None or now.status == "Unknown":
        return
    if is_said_lost(after) and not is_said_lost(before):
        yield Transition(type="Warning", reason=reasons.CLUSTER_LOST, message=now.message)
    elif now.status == "False" and (was is None or (was.status, was.reason) != ("False", now.reason)):
        yield Transition(type="Warning", reason=reasons.CLUSTER_UNREACHABLE, message=f"{now.reason}: {now.message}")
    elif now.status == "True" and was is not None and was.status == "False":
        yield Transition(reason=reasons.CLUSTER_REACHABLE, message="the cluster can be reached again")


def _end(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> Iterator[Transition]:
    was, now = find(before, ConditionType.SUCCEEDED), find(after, ConditionType.SUCCEEDED)
    if now is None or (was is not None and was.status == now.status):
        return
    if now.status == "Unknown":
        if was is not None:
            yield Transition(reason=reasons.CONTINUED, message="it is to reach more than when it succeeded")
        return
    if now.status == "True":
        yield Transition(reason=reasons.SUCCEEDED, message=now.message)
    else:
        yield Transition(type="Warning", reason=reasons.FAILED, message=f"{now.reason}: {now.message}")
