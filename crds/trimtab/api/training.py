"""The processes that train a policy, what they publish and what they keep."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import Rule
from trimtab.api.scalars import Location, PodTemplate, PositiveCount, Resources, Seconds


class Publish(ApiModel):
    """Publication of weights to the rollout pools. It runs beside training and never blocks it."""

    every_steps: PositiveCount = 1
    """Trainer steps between versions."""
    anchor_every_versions: PositiveCount = 100
    """Versions between whole copies, which only pods that join need; all others take deltas."""
    fold_every_versions: Annotated[int, Field(ge=2, le=10_000)] | None = 16
    """Versions that one more delta takes together, for pools that were away. It takes the model's size on disk."""
    keep_versions: Annotated[int, Field(ge=2, le=2_000)] = 200
    """Versions that stay in object storage, so that a pool that was away catches up by deltas."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Type that weights are published in; absent, that of the trainer. With a trainer of float32, bfloat16 halves the
    copies, and deltas are a fraction of them where few weights move by a whole bfloat16 in a step."""
    codec: Literal["auto", "fast", "compact"] = "auto"
    """How deltas are coded: `compact` for least bytes, `fast` for least time. `auto` is fast where all pools are in the
    trainer's cluster; for a job with pools in others it is compact for the tensors where that pays.
    """


class Checkpoint(ApiModel):
    """What a restart resumes from: model, optimiser, position and random state."""

    every_steps: PositiveCount = 50
    """Trainer steps between checkpoints. A crash repeats about this many steps, on the same samples."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Checkpoints that stay."""
    uri: Location | None = None
    """Where they go, a folder or `s3://bucket/prefix`; absent, the job's own object storage."""


def _one_rank_per_gpu(resource: str) -> Rule:
    """Its message names no number: a quantity may be a long text, and an API server refuses rules of such a cost."""
    return Rule(
        f"!has(self.resources) || !has(self.resources.limits) || !('{resource}' in self.resources.limits) || "
        f"string(self.resources.limits['{resource}']) == string(self.devicesPerReplica)",
        f"devicesPerReplica must be the number of {resource} in resources.limits: each rank has one GPU of its pod",
        ".devicesPerReplica",
    )


class TrainerSettings(ApiModel):
    """How a policy's trainer runs."""

    rules: ClassVar[tuple[Rule, ...]] = (_one_rank_per_gpu("nvidia.com/gpu"), _one_rank_per_gpu("amd.com/gpu"))

    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Pods. They start, fail and restart as one group; a change restarts the group from its checkpoint."""
    devices_per_replica: Annotated[int, Field(ge=1, le=64)] = 1
    """Ranks in each pod, one for each of its GPUs; ranks of a pod share its host and NVLink. All ranks together,
    replicas times this, hold one copy of model and optimiser. A change restarts the group from its checkpoint."""
    resources: Resources = Resources()
    """Compute resources of each pod, for all ranks in it."""
    template: PodTemplate | None = None
    """Pod template of the trainer, laid over what the operator generates; a container named `trainer` replaces ours."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type that weights are published in, unless `publish` has its own, and scored with; on a GPU also computed in.
    Master weights and optimiser state are always float32."""
    micro_batch_tokens: Annotated[int, Field(ge=64, le=16_777_216)] = 16_384
    """Tokens packed into one forward pass. It bounds memory and does not change the result."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: about a third more compute for much less memory."""
    max_skipped_steps: Annotated[int, Field(ge=0, le=10_000)] = 10
    """Steps in a row that may be skipped for a NaN or exploding loss before the trainer stops with the reason."""
    grace_period_seconds: Seconds = 120
    """Seconds a rank has after SIGTERM to write a checkpoint and leave."""
    publish: Publish = Publish()
    """Publication of weights."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints."""

    @property
    def published_dtype(self) -> Literal["bfloat16", "float32"]:
        """What pools load."""
        return self.publish.dtype or self.dtype

    @property
    def ranks(self) -> int:
        return self.replicas * self.devices_per_replica
