"""When a job has ended or sleeps, and how long it stays after its end."""

from __future__ import annotations

from trimtab.api.conditions import Condition, ConditionType
from trimtab.api.job import RLJob
from trimtab.operator.conditions import find


def verdict(job: RLJob) -> Condition | None:
    """The condition that says how the job ended. It is final: nothing brings an ended job back."""
    if job.status is None:
        return None
    summary = find(job.status.conditions, ConditionType.SUCCEEDED)
    return summary if summary is not None and summary.status != "Unknown" else None


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
