"""One prompt group to be rolled out: what dataflow puts on the work queue and a worker pulls."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.purpose import Purpose, check_benchmark
from trimtab.fabric.wire.values import Identifier, Index, Label, Name, Token, UnixSeconds, Versions, check_plain

Opaque = Annotated[dict[str, Any], Meta(max_length=4096)]


class Task(Message, frozen=True, kw_only=True):
    """A prompt, how many samples of it are wanted, and how to sample them. The workflow knows which policies answer."""

    KIND: ClassVar[int] = 1
    MAX_BYTES: ClassVar[int] = 4 << 20

    task_id: Token
    job: Name
    prompt_id: Identifier
    prompt: Opaque
    """What the prompt source gave, passed to the workflow as it is."""
    group_size: Annotated[int, Meta(ge=1, le=65536)]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    workflow_args: Opaque = msgspec.field(default_factory=dict)
    sampling: Opaque = msgspec.field(default_factory=dict)
    """Sampling settings that differ from the pool's, such as those of an evaluation."""
    target_versions: Versions = msgspec.field(default_factory=dict)
    """Per policy, the newest weights when the task was issued."""
    minimum_versions: Versions = msgspec.field(default_factory=dict)
    """Per policy, the oldest weights whose samples are still fresh: a pool that lags further hands the task back."""
    label: Label = ""
    """Of the prompt: what trainers choose groups by."""
    attempt: Index = 0
    purpose: Purpose = Purpose.TRAIN
    benchmark: Name | None = None
    created_at: UnixSeconds
    deadline: UnixSeconds | None = None
    """After this the answer is of no use."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_benchmark(self.purpose, self.benchmark)
        check_plain(self.prompt, field="prompt")
        check_plain(self.workflow_args, field="workflow_args")
        check_plain(self.sampling, field="sampling")
        for policy, minimum in self.minimum_versions.items():
            target = self.target_versions.get(policy)
            if target is not None and minimum > target:
                raise InvalidFieldError(
                    f"{policy} needs {minimum}, newer than its target {target}", field="minimum_versions"
                )
        if self.deadline is not None and self.deadline < self.created_at:
            raise InvalidFieldError("before created_at", field="deadline")
