"""Makes curves of what a job wrote down. Pure: the streams in, the points out."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from examples.curves.record import PolicyCurve, ScorePoint, StepPoint
from trimtab.dataflow.audit.history import trained_on
from trimtab.dataflow.ledger.records import EvaluationEnded, EvaluationStarted, Record, StepGranted
from trimtab.fabric.wire.header import TrajectoryHeader
from trimtab.fabric.wire.purpose import Purpose

_DIGITS = 4


class NothingTrained(ValueError):
    """No step was granted: there is no curve to make."""


def policy_curves(headers: Sequence[TrajectoryHeader], records: Sequence[Record]) -> dict[str, PolicyCurve]:
    """By policy. Raises NothingTrained."""
    granted = [record for record in records if isinstance(record, StepGranted)]
    whole = {(record.policy, record.step) for record in granted if record.last}
    # A job may end with a step that has a part of its batch.
    grants = [record for record in granted if (record.policy, record.step) in whole]
    trained = [header for header in headers if header.purpose is Purpose.TRAIN]
    if not grants or not trained:
        raise NothingTrained("the job ended before its first step")
    began_at = min(header.started_at for header in trained)
    return {
        policy: _policy_curve(policy, headers, grants, records, began_at=began_at)
        for policy in sorted({grant.policy for grant in grants})
    }


def _policy_curve(
    policy: str,
    headers: Sequence[TrajectoryHeader],
    grants: Sequence[StepGranted],
    records: Sequence[Record],
    *,
    began_at: float,
) -> PolicyCurve:
    # A policy that plays no role learns from the rows of others.
    trained = [header for header in headers if header.purpose is Purpose.TRAIN]
    own = [header for header in trained if header.policy == policy] or trained
    finished = sorted(header.finished_at for header in own)
    rewards = {
        group_id: [fmean(row.reward or 0.0 for row in rows.values()) for rows in group.episodes.values() if rows]
        for group_id, group in trained_on(own).items()
    }
    batches: defaultdict[int, list[float]] = defaultdict(list)
    granted_at: dict[int, float] = {}
    for grant in grants:  # a step may be granted in portions
        if grant.policy == policy:
            batches[grant.step] += [reward for group in (*grant.groups, *grant.replayed) for reward in rewards[group]]
            granted_at[grant.step] = grant.granted_at
    steps = [
        StepPoint(
            step=step,
            seconds=round(granted_at[step] - began_at, 2),
            rollouts=bisect_right(finished, granted_at[step]),
            reward=round(fmean(batches[step]), _DIGITS),
        )
        for step in sorted(batches)
    ]
    return PolicyCurve(steps=tuple(steps), scores=_scores(policy, headers, records, steps))


def _scores(
    policy: str, headers: Sequence[TrajectoryHeader], records: Sequence[Record], steps: Sequence[StepPoint]
) -> dict[str, tuple[ScorePoint, ...]]:
    """Placed at the step that made the weights which sampled, on average: a round asks for its weights or newer ones,
    and how much newer they are depends on how long it waited for its turn.
    """
    sampled = [header for header in headers if header.policy == policy and header.purpose is Purpose.EVALUATION]
    started_at = {record.number: record.at for record in records if isinstance(record, EvaluationStarted)}
    points: defaultdict[str, list[ScorePoint]] = defaultdict(list)
    for record in records:
        if not isinstance(record, EvaluationEnded):
            continue
        for score in record.scores:
            if score.policy != policy or score.score is None:
                continue
            versions = [
                header.newest_version
                for header in sampled
                if header.benchmark == score.benchmark
                and header.newest_version is not None
                and started_at[record.number] <= header.started_at <= record.at
            ]
            version = fmean(versions) if versions else float(score.version)
            made = steps[min(round(version), len(steps) - 1)]
            points[score.benchmark].append(
                ScorePoint(
                    version=round(version, 2),
                    seconds=made.seconds,
                    rollouts=made.rollouts,
                    score=round(score.score, _DIGITS),
                )
            )
    return {benchmark: tuple(found) for benchmark, found in points.items()}
