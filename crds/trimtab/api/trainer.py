"""Trainer: the ranks that train one policy of a job."""

from __future__ import annotations

from typing import Annotated, Literal

from trimtab.api.algorithm import Algorithm
from trimtab.api.conditions import Conditions, LastError
from trimtab.api.goals import Goals
from trimtab.api.model import ApiModel, ObjectMeta
from trimtab.api.policy import Model
from trimtab.api.pool import CHILD_NAME_RULE
from trimtab.api.rules import Rule, immutable
from trimtab.api.scalars import Count, Fraction, JobRef, MemberName, NonNegative
from trimtab.api.training import TrainerSettings


class TrainerSpec(TrainerSettings):
    """What the trainer should be."""

    rules = (
        *TrainerSettings.rules,
        Rule("has(self.model) == has(oldSelf.model)", "model is immutable: versions continue from it", ".model"),
    )

    job_ref: Annotated[JobRef, immutable("jobRef", why="ranks are wired to one job; create another Trainer")]
    """The RLJob this trainer works for."""
    policy: Annotated[MemberName, immutable("policy", why="the checkpoint belongs to it; create another Trainer")]
    """The policy it trains."""
    model: Annotated[Model, immutable("model", why="versions continue from it; create another Trainer")] | None = None
    """Weights the policy starts from; absent, those of the job's policy of that name."""
    algorithm: Algorithm | None = None
    """How it learns; absent, as the job's policy of that name."""
    suspend: bool = False
    """Checkpoint, then delete all pods, and keep the object."""


class TrainerStatus(ApiModel):
    """What the trainer is."""

    observed_generation: Count | None = None
    """The metadata.generation this status was made for."""
    conditions: Conditions = ()
    """Ready, Accepted, Progressing and Suspended."""
    replicas: Count = 0
    """Pods that exist."""
    ready_replicas: Count = 0
    """Pods whose ranks train."""
    attempt: Count = 0
    """How often the group was started; it marks pods, logs and checkpoints."""
    started_attempt: Count | None = None
    """Newest attempt whose ranks were let run. One that never was, such as one that a quota refuses, is tried again
    under its number. Absent: not known, and taken to have run."""
    goals: Goals | None = None
    """What the job was to reach when this attempt began. An attempt that ends well is not the last one when the
    manifest asks for more by then."""
    restarts: Count = 0
    """Restarts for any reason."""
    restarts_counted: Count = 0
    """Restarts that count against the job's maxRestarts; preemption is not among them."""
    judged_attempt: Count = 0
    """Newest attempt whose failure has been judged, so that none is counted twice."""
    step: Count = 0
    """Steps done."""
    version: Count = 0
    """Latest published weight version."""
    checkpoint_step: Count | None = None
    """Step of the latest checkpoint."""
    reward: float | None = None
    """Mean reward of the last window."""
    waiting_fraction: Fraction | None = None
    """Share of the last window the trainer spent waiting for samples."""
    staleness: NonNegative | None = None
    """Mean staleness, in versions, of the samples of the last window."""
    tokens_per_second: NonNegative | None = None
    """Trained tokens per second, over all ranks, in the last step."""
    skipped_steps: Count = 0
    """Steps of this attempt that were skipped because their loss or gradient was not finite."""
    unarchived_steps: Count = 0
    """Steps of this attempt whose samples are not in `data.archive`, because the store took them too slowly."""
    last_error: LastError | None = None
    """The latest failure."""


class Trainer(ApiModel):
    """The ranks that train one policy. A job creates one per policy; create one by hand to attach a trainer of your
    own."""

    rules = (CHILD_NAME_RULE,)

    api_version: Literal["rl.trimtab.dev/v1alpha1"] = "rl.trimtab.dev/v1alpha1"
    """Always rl.trimtab.dev/v1alpha1."""
    kind: Literal["Trainer"] = "Trainer"
    """Always Trainer."""
    metadata: ObjectMeta
    """Standard object metadata."""
    spec: TrainerSpec
    """What the trainer should be."""
    status: TrainerStatus | None = None
    """What the trainer is; written by the operator."""
