"""The result of a policy on one benchmark: what people compare versions by."""

from __future__ import annotations

from typing import ClassVar

from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.values import Count, Finite, Name, UnixSeconds, Version


class EvaluationResult(Message, frozen=True, kw_only=True):
    """Of the held-out prompts of one benchmark. Its samples never reach a training batch."""

    KIND: ClassVar[int] = 15
    MINOR: ClassVar[int] = 1
    MAX_BYTES: ClassVar[int] = 1 << 14

    job: Name
    policy: Name
    benchmark: Name
    version: Version
    """The policy's newest published weights when the round began; its samples are of these or newer ones."""
    newest_version: Version | None = None
    """The newest weights that sampled."""
    score: Finite | None
    """Mean reward of the episodes that did not fail; None when all did."""
    episodes: Count
    failed: Count = 0
    best_version: Version | None = None
    """Which did best on the benchmark up to and with this one."""
    best_score: Finite | None = None
    at: UnixSeconds
