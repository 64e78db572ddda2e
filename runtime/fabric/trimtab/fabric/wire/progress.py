"""What one trainer step looked like from the dataflow: what people watch while a job learns."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.values import Count, Finite, Fraction, Name, Slug, UnixSeconds

MAX_PART_NAMES = 64


class StepProgress(Message, frozen=True, kw_only=True):
    """Written when a step's batch is granted, so it describes the samples the step learns from."""

    KIND: ClassVar[int] = 13
    MAX_BYTES: ClassVar[int] = 1 << 14

    job: Name
    policy: Name
    step: Count
    reward: Finite
    """Mean over the episodes of the batch."""
    reward_parts: Annotated[dict[Slug, Finite], Meta(max_length=MAX_PART_NAMES)] = msgspec.field(default_factory=dict)
    """By name, the mean of a part of the reward over the episodes that have it."""
    staleness: Finite
    """Mean over the batch, in versions, judged on each sample's oldest trained token."""
    max_staleness: Count
    wait_fraction: Fraction
    """Of the latest steps that the trainer has reported."""
    samples: Count
    """Episodes consumed since the job began, this step included."""
    buffered: Count
    running: Count
    dropped: Count
    trained_tokens: Count = 0
    """Of the batch."""
    length: Finite | None = None
    """Mean number of tokens after the prompt, over the rows of the batch."""
    truncated: Fraction | None = None
    """Share of those rows that ended for want of room."""
    at: UnixSeconds
