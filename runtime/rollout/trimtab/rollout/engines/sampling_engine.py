"""What a worker needs of an engine to sample from it, whatever protocol it speaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trimtab.rollout.engines.contract import EngineLoad, Generated, SamplingSettings


class SamplingEngine(Protocol):
    """Raises an EngineError for everything that keeps it from an answer."""

    async def generate(
        self, input_ids: Sequence[int], settings: SamplingSettings, *, request_id: str, weight_version: str
    ) -> Generated:
        """`weight_version` is what the weights are called that it should have."""

    async def load(self, *, timeout_s: float) -> EngineLoad: ...
