"""One line of a chronicle each: what was heard on the bus and what was decided, without what only machines need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from trimtab.api.autoscaling import AutoscalingStatus
from trimtab.api.job import RLJob
from trimtab.fabric.bus.fleet_note import Decision, FleetNote
from trimtab.fabric.wire.balance import BalanceReport, Branch
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.operator.job_watch import JobMessage

LEARNING_RATE = "learning_rate"
"""Its name in what a trainer measures."""


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", omit_defaults=True):
    at: float
    """Unix time."""


class Began(_Line, tag="began", frozen=True, kw_only=True):
    """`trimtab run` was called, for the first time or to resume; what the manifest asks for."""

    job: str
    max_steps: int | None = None
    target_reward: float | None = None
    max_staleness: int
    mode: str
    tau_low: float
    tau_high: float
    window_steps: int
    models: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By policy, the folder of the model that it began with."""
    tokenizers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By policy, the folder of the tokenizer, where it is not the model's."""
    changed: tuple[str, ...] = ()
    """Settings of learning that were others in the run before, with what they were and are."""
    archives: bool = False
    """Whether it keeps its samples in object storage."""


class Step(_Line, tag="step", frozen=True, kw_only=True):
    """A trainer step got its batch."""

    policy: str
    step: int
    reward: float
    reward_parts: Mapping[str, float] = msgspec.field(default_factory=dict)
    staleness: float
    waiting: float
    samples: int
    """Trained since the job began, this step included."""
    buffered: int
    running: int
    tokens: int = 0
    """Trained in this step."""
    length: float | None = None
    """Of answers, in tokens, on average."""
    truncated: float | None = None
    """Share of answers that were cut short."""


class Measured(_Line, tag="measured", frozen=True, kw_only=True):
    """What a trainer said of its newest step in a heartbeat: of every step where steps are longer than those."""

    policy: str
    step: int
    """Steps made, this one included."""
    values: Mapping[str, float]
    tokens_per_second: float


class Window(_Line, tag="window", frozen=True, kw_only=True):
    """A balance report: what autoscaling rests on."""

    policy: str
    first_step: int
    last_step: int
    seconds: float
    waiting: float
    zone: Branch


class Version(_Line, tag="version", frozen=True, kw_only=True):
    """Weights were published."""

    policy: str
    epoch: int
    version: int
    base: int | None = None
    """None for a full copy."""
    size: int


class Score(_Line, tag="score", frozen=True, kw_only=True):
    """A version was evaluated on held-out prompts."""

    policy: str
    benchmark: str
    version: int
    score: float | None = None
    episodes: int
    failed: int = 0
    best_version: int | None = None
    """Which did best up to then."""
    best_score: float | None = None


class Fleet(_Line, tag="fleet", frozen=True, kw_only=True):
    """The number of rollout replicas changed: by pool, how many take tasks and how many are wanted."""

    ready: Mapping[str, int]
    wanted: Mapping[str, int]
    cost_per_hour: float | None = None
    """Of those that take tasks; None where no pool has a price."""


class Rescaled(_Line, tag="rescaled", frozen=True, kw_only=True):
    """The autoscaler changed the size of the fleet."""

    before: int
    after: int
    reason: str
    message: str
    maintainer: str
    waiting: float | None = None


class Died(_Line, tag="died", frozen=True, kw_only=True):
    """A rank of a trainer ended by itself, and its group was started again."""

    pod: str
    why: str = ""


class Ended(_Line, tag="ended", frozen=True, kw_only=True):
    """`trimtab run` came to its end: `succeeded`, `stopped` or `failed`. One that was killed leaves no such line."""

    outcome: str
    why: str = ""


Record = Began | Step | Measured | Window | Version | Score | Fleet | Rescaled | Died | Ended


def began(job: RLJob, *, beside: Path, at: float, changed: tuple[str, ...] = ()) -> Began:
    """`beside` is the folder of the manifest, which its paths are relative to."""
    scaling = job.spec.autoscaling
    return Began(
        at=at,
        job=job.metadata.name,
        max_steps=job.spec.max_steps,
        target_reward=job.spec.target_reward,
        max_staleness=job.spec.data.max_staleness,
        mode=scaling.mode,
        tau_low=scaling.tau_low,
        tau_high=scaling.tau_high,
        window_steps=scaling.window_steps,
        changed=changed,
        archives=job.spec.data.archive is not None,
        models={
            policy.name: str((beside / policy.model.uri).resolve())
            for policy in job.spec.learning
            if policy.model is not None
        },
        tokenizers={
            policy.name: str((beside / policy.model.tokenizer).resolve())
            for policy in job.spec.learning
            if policy.model is not None and policy.model.tokenizer is not None
        },
    )


def of_message(message: JobMessage) -> Record:
    match message:
        case StepProgress():
            return Step(
                at=message.at,
                policy=message.policy,
                step=message.step,
                reward=message.reward,
                reward_parts=message.reward_parts,
                staleness=message.staleness,
                waiting=message.wait_fraction,
                samples=message.samples,
                buffered=message.buffered,
                running=message.running,
                tokens=message.trained_tokens,
                length=message.length,
                truncated=message.truncated,
            )
        case BalanceReport():
            return Window(
                at=message.at,
                policy=message.policy,
                first_step=message.first_step,
                last_step=message.last_step,
                seconds=message.wall_seconds,
                waiting=message.wait_fraction,
                zone=message.branch,
            )
        case EvaluationResult():
            return Score(
                at=message.at,
                policy=message.policy,
                benchmark=message.benchmark,
                version=message.version,
                score=message.score,
                episodes=message.episodes,
                failed=message.failed,
                best_version=message.best_version,
                best_score=message.best_score,
            )
        case WeightPointer():
            return Version(
                at=message.published_at,
                policy=message.policy,
                epoch=message.epoch,
                version=message.version,
                base=message.base_version,
                size=message.size_bytes,
            )


def rescaled(decision: AutoscalingStatus, *, at: float) -> Rescaled:
    return Rescaled(
        at=at,
        before=decision.current,
        after=decision.bounded,
        reason=decision.reason,
        message=decision.message,
        maintainer=decision.maintainer,
        waiting=decision.waiting_fraction,
    )


def of_note(note: FleetNote) -> list[Rescaled | Died]:
    """What has happened, in its order."""
    happened: list[Rescaled | Died] = [_of_decision(decision) for decision in note.decisions]
    happened += [Died(at=failure.at, pod=failure.pod, why=failure.why) for failure in note.failures]
    return sorted(happened, key=lambda record: record.at)


def _of_decision(decision: Decision) -> Rescaled:
    return Rescaled(
        at=decision.at,
        before=decision.before,
        after=decision.after,
        reason=decision.reason,
        message=decision.message,
        maintainer=decision.maintainer,
        waiting=decision.waiting,
    )
