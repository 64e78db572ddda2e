"""What a sampler needs of an engine, whatever protocol it speaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trimtab.rollout.engines.client import Generated, SamplingSettings


class SamplingEngine(Protocol):
    """Raises an EngineError for everything that keeps it from an answer."""

    async def generate(self, input_ids: Sequence[int], settings: SamplingSettings, *, request_id: str) -> Generated: ...
