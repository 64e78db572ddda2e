"""What a job's trackers are told of its fleet that only the operator knows, from statuses as they were written down: an
operator that begins anew finds the same there.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api.autoscaling import AutoscalingStatus
from trimtab.api.job import RLJob
from trimtab.api.trainer import Trainer
from trimtab.fabric.bus.fleet_note import MAX_TEXT, Decision, FleetNote, TrainerFailure


def fleet_note(job: RLJob, trainers: Sequence[Trainer], *, now: float) -> FleetNote | None:
    """The newest of each, of the manifest's pools; None for a job without trackers, and before it has a status."""
    if not job.spec.tracking or job.status is None:
        return None
    scaling, pools = job.status.autoscaling, {pool.name for pool in job.spec.pools}
    decision = None if scaling is None else _decision(scaling)
    return FleetNote(
        wanted={pool.name: pool.desired_replicas for pool in job.status.pools if pool.name in pools},
        decisions=() if decision is None else (decision,),
        failures=tuple(_failure(trainer, now=now) for trainer in trainers if _failures(trainer)),
    )


def _decision(scaling: AutoscalingStatus) -> Decision | None:
    """None when the status tells of a decision that changed nothing, or was not carried out."""
    changes = any(pool.target != pool.current for pool in scaling.pools)
    if scaling.mode != "Auto" or scaling.last_decision_time is None or not changes:
        return None
    return Decision(
        at=scaling.last_decision_time.timestamp(),
        before=scaling.current,
        after=scaling.bounded,
        reason=scaling.reason,
        message=scaling.message[:MAX_TEXT],
        maintainer=scaling.maintainer,
        waiting=scaling.waiting_fraction,
    )


def _failures(trainer: Trainer) -> int:
    return 0 if trainer.status is None else trainer.status.restarts_counted


def _failure(trainer: Trainer, *, now: float) -> TrainerFailure:
    error = None if trainer.status is None else trainer.status.last_error
    return TrainerFailure(
        trainer=trainer.metadata.name,
        number=_failures(trainer),
        at=now,
        pod=trainer.metadata.name if error is None or error.pod is None else error.pod,
        why="" if error is None else error.message[:MAX_TEXT],
    )
