"""Has a policy's engines score tokens that are given, through pauses, weight swaps and the death of an engine.

Numbers have the version that the engine names, if it can have had it while the request ran; otherwise they are thrown
away, and asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.rollout.engines.contract import (
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    Scored,
    ScoringEngine,
)
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.spread import chosen
from trimtab.rollout.policy.trust import token_versions
from trimtab.rollout.policy.version_gate import label_of

_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=0.1, cap_s=2.0)

Ask = Callable[[ScoringEngine, str], Awaitable[Scored]]
"""Asks an engine that is believed to serve weights of this name."""


@dataclass(frozen=True, kw_only=True)
class ScoredTokens:
    """Numbers about given tokens, and the oldest and newest weights that they come from."""

    numbers: tuple[float, ...]
    oldest_version: int
    newest_version: int


class PolicyScorer:
    """One policy on all its engines in a pod. `max_requests` are under way at each at once; more wait here."""

    def __init__(
        self, engines: Sequence[PolicySampler], *, max_requests: int = 8, backoff: FullJitter = _BACKOFF
    ) -> None:
        """Engines that are asked with messages score nothing; the manifest's rules keep them out."""
        self._engines = engines
        self._turns = asyncio.Semaphore(max_requests * len(engines))
        self._under_way = [0] * len(engines)
        self._sent = [0] * len(engines)
        self._backoff = backoff
        self.scored_tokens = 0

    async def logprobs(
        self, token_ids: Sequence[int], *, temperature: float, request_id: str, deadline_s: float
    ) -> ScoredTokens:
        """Of every token after the first, at `temperature`. Raises an EngineError when the deadline comes first."""

        def ask(engine: ScoringEngine, weights: str) -> Awaitable[Scored]:
            return engine.score(token_ids, temperature=temperature, request_id=request_id, weight_version=weights)

        return await self._answered(ask, request_id=request_id, deadline_s=deadline_s)

    async def values(self, token_ids: Sequence[int], *, request_id: str, deadline_s: float) -> ScoredTokens:
        """Of every token."""

        def ask(engine: ScoringEngine, weights: str) -> Awaitable[Scored]:
            return engine.values(token_ids, request_id=request_id, weight_version=weights)

        return await self._answered(ask, request_id=request_id, deadline_s=deadline_s)

    async def _answered(self, ask: Ask, *, request_id: str, deadline_s: float) -> ScoredTokens:
        failures = 0
        try:
            async with asyncio.timeout(deadline_s), self._turns:
                while (answer := await self._attempt(ask, request_id=request_id)) is None:
                    await asyncio.sleep(self._backoff.delay_s(failures))
                    failures += 1
        except TimeoutError:
            raise EngineTimeout(f"{request_id} not scored within {deadline_s:.3g} s") from None
        self.scored_tokens += len(answer.numbers)
        return answer

    async def _attempt(self, ask: Ask, *, request_id: str) -> ScoredTokens | None:
        """One request to one engine; None when its answer is missing, aborted or cannot be trusted."""
        usable = [not engine.away and engine.gate.is_open for engine in self._engines]
        place = chosen(home=None, loads=self._under_way, sent=self._sent, usable=usable)
        sampler = self._engines[place]
        self._sent[place] += 1
        self._under_way[place] += 1
        try:
            async with sampler.gate.request() as crossing:
                scored = await ask(cast(ScoringEngine, sampler.engine), label_of(crossing.possible[-1]))
        except EngineOverloaded as error:
            sampler.overloads += 1
            _log.info("scoring_repeated", request=request_id, error=str(error))
            return None
        except EngineUnavailable as error:
            _log.warning("scoring_repeated", request=request_id, error=str(error))
            sampler.lose()
            return None
        finally:
            self._under_way[place] -= 1
        if scored.finish == "abort":
            return None
        versions = token_versions(scored, crossing.possible)
        if versions is None:
            _log.warning("scores_discarded", request=request_id, weights=scored.weight_version)
            # Weights came while an engine that does not account for tokens was at it: that is no fault of its own.
            if len(crossing.possible) == 1:
                sampler.lose()
            return None
        sampler.find()
        versions = versions or [crossing.possible[-1].version]
        return ScoredTokens(numbers=scored.numbers, oldest_version=min(versions), newest_version=max(versions))
