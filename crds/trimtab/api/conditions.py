"""Conditions: the one place where a controller says what is true of an object and why. No phases."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import ListMap


class ConditionType(StrEnum):
    """Every condition Trimtab writes. An absent one reads as Unknown."""

    ACCEPTED = "Accepted"  # all kinds: the server's dry run took the children, templates included
    SUCCEEDED = "Succeeded"  # RLJob, the summary: Unknown while running, False is final, True until more is asked for
    READY = "Ready"  # RolloutPool and Trainer, the summary
    SUSPENDED = "Suspended"
    PROGRESSING = "Progressing"  # a changed template or size is being rolled out
    SANDBOXED = "Sandboxed"  # RolloutPool with workflow.sandbox: what holds programs back
    REACHABLE = "Reachable"  # RolloutPool in another cluster
    HAS_ROOM = "HasRoom"  # RLJob: its streams can store more; where not, no new tasks are admitted
    DURABLE = "Durable"  # RLJob: the loss of a NATS server's power costs nothing that was acknowledged
    ABLE_TO_SCALE = "AbleToScale"
    SCALING_ACTIVE = "ScalingActive"
    SCALING_LIMITED = "ScalingLimited"


class Condition(ApiModel):
    """A statement about the object, in the form of metav1.Condition."""

    type: Annotated[str, Field(max_length=316, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$")]
    """What the statement is about, such as `Ready`."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one CamelCase word that programs may rely on."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, in a sentence for people."""
    last_transition_time: datetime
    """When `status` changed last."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation this statement was made for."""


Conditions = Annotated[tuple[Condition, ...], ListMap("type"), Field(max_length=16)]


class LastError(ApiModel):
    """The latest failure, with the pod it came from."""

    time: datetime
    """When it was seen."""
    reason: Annotated[str, Field(max_length=128)]
    """Its kind, in one CamelCase word, such as `OOMKilled` or `RewardRaised`."""
    message: Annotated[str, Field(max_length=2048)]
    """What happened, shortened, with secrets removed."""
    pod: Annotated[str, Field(max_length=253)] | None = None
    """The pod it came from."""
    container: Annotated[str, Field(max_length=253)] | None = None
    """The container in that pod."""
    cluster: Annotated[str, Field(max_length=253)] | None = None
    """The kubeconfig Secret of the cluster the pod is in; absent for the operator's own cluster."""
    exit_code: int | None = None
    """Exit code of the container, when it ended."""
