"""Samples one completion of a policy, through pauses, weight swaps and the death of an engine.

Each request is stamped with the weight version when it is sent. A swap aborts what is under way: the tokens so far are
kept with their version, and the rest is asked for again with the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from trimtab.fabric.wire.spans import Span, merged, model_span
from trimtab.rollout.engines.client import (
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    Generated,
    SamplingSettings,
)
from trimtab.rollout.engines.sampling_engine import SamplingEngine
from trimtab.rollout.seeds import derived_seed
from trimtab.rollout.version_gate import VersionGate

_log = structlog.get_logger(__name__)
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Sampled tokens with their logprobs and versions."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[Span, ...]
    finish: Literal["stop", "length"]


class PolicySampler:
    """One policy on one engine. `lost` is set when the engine answers with weights it should not have."""

    def __init__(self, engine: SamplingEngine, gate: VersionGate) -> None:
        self._engine = engine
        self._gate = gate
        self.lost = asyncio.Event()
        self.sampled_tokens = 0

    async def complete(
        self, prompt: Sequence[int], settings: SamplingSettings, *, request_id: str, deadline_s: float
    ) -> Completion:
        """Raises an EngineError when the deadline comes first."""
        tokens: list[int] = []
        logprobs: list[float] = []
        spans: list[Span] = []
        finish: Literal["stop", "length", "abort"] = "abort"
        attempt = 0
        delay = _RETRY_FIRST_S
        try:
            async with asyncio.timeout(deadline_s):
                while finish == "abort":
                    left = _rest(settings, tokens_so_far=len(tokens), attempt=attempt)
                    part, version = await self._segment([*prompt, *tokens], left, request_id=f"{request_id}.{attempt}")
                    attempt += 1
                    tokens += part.token_ids
                    logprobs += part.logprobs
                    finish = part.finish
                    if part.token_ids:
                        spans.append(model_span(len(part.token_ids), version=version))
                        delay = _RETRY_FIRST_S
                        if finish == "abort" and len(tokens) >= settings.max_new_tokens:
                            finish = "length"
                    elif finish == "abort":
                        # Somebody aborts as fast as we ask: an engine that shuts down, or one that is full.
                        await asyncio.sleep(delay)
                        delay = min(delay * 2, _RETRY_MAX_S)
        except TimeoutError:
            raise EngineTimeout(f"completion {request_id} not finished within {deadline_s:.3g} s") from None
        self.sampled_tokens += len(tokens)
        return Completion(token_ids=tuple(tokens), logprobs=tuple(logprobs), spans=merged(spans), finish=finish)

    async def _segment(
        self, input_ids: Sequence[int], settings: SamplingSettings, *, request_id: str
    ) -> tuple[Generated, int]:
        delay = _RETRY_FIRST_S
        while True:
            try:
                async with self._gate.request() as version:
                    part = await self._engine.generate(input_ids, settings, request_id=request_id)
            except (EngineUnavailable, EngineOverloaded) as error:
                _log.warning("generation_repeated", request=request_id, error=str(error), delay_s=delay)
                if isinstance(error, EngineUnavailable):
                    self.lost.set()
            else:
                if part.weight_version == str(version):
                    return part, version
                # An engine that restarted serves other weights than it was last given; what it said is worthless.
                self.lost.set()
            await asyncio.sleep(delay)
            delay = min(delay * 2, _RETRY_MAX_S)


def _rest(settings: SamplingSettings, *, tokens_so_far: int, attempt: int) -> SamplingSettings:
    """What is still to be asked for. The random numbers of the part before must not be drawn again."""
    seed = settings.seed if settings.seed is None or attempt == 0 else derived_seed(settings.seed, "part", attempt)
    return replace(settings, max_new_tokens=settings.max_new_tokens - tokens_so_far, seed=seed)
