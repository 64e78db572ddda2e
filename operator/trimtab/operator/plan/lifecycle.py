"""When a job ends, rests or goes: how it ended, why its pods should not run, how long it stays after its end, and
whether it is hopeless.

A job is hopeless when its first prompt groups were all given up for the same reason. A workflow that always raises, or
rewards with NaN, would otherwise use up prompt after prompt while the trainer waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trimtab.api.conditions import Condition, ConditionType
from trimtab.api.goals import raised
from trimtab.api.job import RLJob
from trimtab.operator.conditions import find

_MAX_MESSAGE = 800
_PASSING = ("engine-unavailable", "engine-timeout", "engine-overloaded", "delivered-too-often")
"""Kinds of failures that are not the workflow's or the prompt's, and may be over in a while."""


def verdict(job: RLJob) -> Condition | None:
    """The condition that says how the job ended; None while it has more to do. A failure is final; a success is until
    the manifest asks for more.
    """
    if job.status is None:
        return None
    summary = find(job.status.conditions, ConditionType.SUCCEEDED)
    if summary is None or summary.status == "Unknown":
        return None
    goes_on = summary.status == "True" and raised(job.spec.goals, job.status.goals)
    return None if goes_on else summary


def rest_reason(job: RLJob) -> tuple[str, str] | None:
    """Why the job's pods should not run: a word and a sentence. None when they should."""
    if job.metadata.deletion_timestamp is not None:
        return "JobDeleted", "the job is being deleted"
    ended = verdict(job)
    if ended is not None:
        return "JobEnded", "the job has succeeded" if ended.status == "True" else "the job has failed"
    if job.spec.suspend:
        return "Suspended", "the job's spec.suspend is true"
    return None


def delete_at(job: RLJob) -> float | None:
    """When the job's time after its end is over; None when it stays."""
    ended = verdict(job)
    if ended is None or job.spec.ttl_seconds_after_finished is None:
        return None
    return ended.last_transition_time.timestamp() + job.spec.ttl_seconds_after_finished


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """A training task in quarantine."""

    number: int
    """Of the task, in the order of issue."""
    error: str
    message: str
    where: str
    """The line of the workflow; empty where none is known."""
    at: float

    def is_like(self, other: GivenUp) -> bool:
        """Messages of one fault differ where they name the prompt; its line does not."""
        by_place = bool(self.where and other.where)
        alike = self.where == other.where if by_place else self.message == other.message
        return self.error == other.error and alike


def hopeless(job: RLJob, given_up: Sequence[GivenUp], *, any_completed: bool) -> str | None:
    """Why the job should end, in a sentence; None when it should not. `given_up` are those that are known.

    Consecutive tasks count: where some prompts are bad, others among them are not. And of a job that was stopped,
    mended and resumed, only what it did since.
    """
    wanted = job.spec.failure_policy.failed_groups
    if not wanted or any_completed:
        return None
    since = job.status.start_time.timestamp() if job.status is not None and job.status.start_time else 0.0
    counted = sorted((one for one in given_up if one.at >= since and one.error not in _PASSING), key=lambda o: o.number)
    alike = 1
    for before, one in pairwise(counted) if wanted > 1 else ():
        alike = alike + 1 if one.number == before.number + 1 and one.is_like(before) else 1
        if alike >= wanted:
            return _told(one, groups=alike)
    return _told(counted[0], groups=1) if counted and wanted == 1 else None


def _told(one: GivenUp, *, groups: int) -> str:
    why = " ".join(one.message.split())[:_MAX_MESSAGE]
    place = f" at {one.where}" if one.where else ""
    many = f"the first {groups} prompt groups all failed" if groups > 1 else "the first prompt group failed"
    return f"{many}{place}: {why} ({one.error}, failurePolicy.failedGroups {groups})"
