"""Samples one completion of a policy, through pauses, weight swaps and the death of an engine.

An answer's tokens have the versions that the engine names, if it can have had them; otherwise the answer is thrown
away. What was aborted on the way is kept, and the rest is asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.wire.spans import Span, model_span
from trimtab.rollout.engines.contract import (
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    Finish,
    Generated,
    SamplingEngine,
    SamplingSettings,
)
from trimtab.rollout.phases import ENGINE, phase
from trimtab.rollout.policy.spread import PrefixHomes, chosen
from trimtab.rollout.policy.trust import TrustedSoFar, token_versions
from trimtab.rollout.policy.version_gate import VersionGate, label_of

_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=0.1, cap_s=2.0)

Listener = Callable[[Sequence[int]], None]
"""Is told of a completion's tokens while it is sampled, in their order and each once. What it is told is never taken
back; of the last tokens it may hear only by the completion.
"""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Sampled tokens with their logprobs and versions."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[Span, ...]
    finish: Literal["stop", "length"]


class _Draft:
    """A completion that grows part by part."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []

    def add(self, part: Generated, versions: Sequence[int]) -> None:
        self.token_ids += part.token_ids
        self.logprobs += part.logprobs
        self.versions += versions

    def cut(self, length: int) -> None:
        del self.token_ids[length:], self.logprobs[length:], self.versions[length:]


class _Telling:
    """Tells a listener of tokens as soon as nothing can take them back. The last of a part are `withheld`: if it is
    aborted there, they are drawn again.
    """

    def __init__(self, listener: Listener, *, withheld: int) -> None:
        self._listener = listener
        self._withheld = withheld
        self._settled = 0
        self._told = 0
        self._under_way: list[int] = []
        """Of the part that is being sampled."""

    def grown(self, token_ids: Sequence[int]) -> None:
        self._under_way += token_ids
        certain = self._settled + len(self._under_way) - self._withheld
        if certain > self._told:
            news = self._under_way[self._told - self._settled : certain - self._settled]
            self._told = certain
            self._listener(news)

    def settled(self, token_ids: Sequence[int]) -> None:
        """The part is over, and these are all tokens that stay, from the beginning."""
        news = token_ids[self._told :]
        self._under_way = []
        self._settled = self._told = len(token_ids)
        if news:
            self._listener(news)


class Completing(ABC):
    """Asks for parts of a completion until it is whole."""

    def __init__(self, *, backoff: FullJitter = _BACKOFF) -> None:
        self._backoff = backoff
        self.sampled_tokens = 0

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        """Raises an EngineError when the deadline comes first."""
        draft = _Draft()
        telling = None if listener is None else _Telling(listener, withheld=_uncertain_tail(settings))
        finish: Finish = "abort"
        attempt = barren = 0
        try:
            async with asyncio.timeout(deadline_s):
                while finish == "abort":
                    before = len(draft.token_ids)
                    left = _rest(settings, tokens_so_far=before, attempt=attempt)
                    part, versions = await self._part(
                        [*prompt, *draft.token_ids],
                        left,
                        request_id=f"{request_id}.{attempt}",
                        grown=None if telling is None else telling.grown,
                    )
                    attempt += 1
                    draft.add(part, versions)
                    finish = part.finish
                    if finish == "abort" and len(draft.token_ids) >= settings.max_new_tokens:
                        finish = "length"
                    if finish == "abort":
                        draft.cut(max(before, len(draft.token_ids) - _uncertain_tail(settings)))
                    if telling is not None:
                        telling.settled(draft.token_ids)
                    if len(draft.token_ids) > before:
                        barren = 0
                    elif finish == "abort":
                        # Aborted as fast as we ask: the engine shuts down, or it is full.
                        await asyncio.sleep(self._backoff.delay_s(barren))
                        barren += 1
        except TimeoutError:
            raise EngineTimeout(f"completion {request_id} not finished within {deadline_s:.3g} s") from None
        self.sampled_tokens += len(draft.token_ids)
        return Completion(
            token_ids=tuple(draft.token_ids),
            logprobs=tuple(draft.logprobs),
            spans=spans_of(draft.versions),
            finish=finish,
        )

    async def _part(
        self, input_ids: Sequence[int], settings: SamplingSettings, *, request_id: str, grown: Listener | None
    ) -> tuple[Generated, list[int]]:
        """An answer that can be trusted, with the version of each token."""
        failures = 0
        while True:
            delay_s = self._backoff.delay_s(failures)
            answer = await self._attempt(input_ids, settings, request_id=request_id, delay_s=delay_s, grown=grown)
            if answer is not None:
                return answer
            await asyncio.sleep(delay_s)
            failures += 1

    @abstractmethod
    async def _attempt(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        delay_s: float,
        grown: Listener | None,
    ) -> tuple[Generated, list[int]] | None:
        """One request to one engine; None to ask again after `delay_s`. `grown` is told of tokens that the answer will
        begin with.
        """


class PolicySampler(Completing):
    """One policy on one engine."""

    def __init__(self, engine: SamplingEngine, gate: VersionGate, *, backoff: FullJitter = _BACKOFF) -> None:
        super().__init__(backoff=backoff)
        self.engine = engine
        self.gate = gate
        self.lost = asyncio.Event()
        """The engine is gone, or answered with weights that it should not have. Whoever looks after it clears this."""
        self.away = False
        """It was lost, and has not been seen to serve since."""
        self.accounts_for_tokens = False
        """Whether the engine's latest answer named the weights of each token: only such an engine may be given others
        while requests run.
        """
        self.overloads = 0
        """Requests that found the engine's queue full."""

    def lose(self) -> None:
        self.away = True
        self.lost.set()

    def find(self) -> None:
        """It serves what it should."""
        self.away = False

    async def attempt(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        delay_s: float,
        grown: Listener | None,
    ) -> tuple[Generated, list[int]] | None:
        """One request; None when its answer is missing or cannot be trusted. `delay_s` is how long the asker waits
        then. Of an answer that `grown` was told of, there is what it was told.
        """
        so_far: TrustedSoFar | None = None
        try:
            async with self.gate.request() as crossing:
                newest = label_of(crossing.possible[-1])
                so_far = None if grown is None else TrustedSoFar(crossing, grown)
                with phase(ENGINE) as answer:
                    part = await self.engine.generate(
                        input_ids,
                        settings,
                        request_id=request_id,
                        weight_version=newest,
                        progress=None if so_far is None else so_far.take,
                    )
                    answer.first_token_s = part.first_token_s
        except EngineOverloaded as error:
            self.overloads += 1
            _log.info("generation_repeated", request=request_id, error=str(error), delay_s=delay_s)
            return None if so_far is None else so_far.aborted()
        except EngineUnavailable as error:
            _log.warning("generation_repeated", request=request_id, error=str(error), delay_s=delay_s)
            self.lose()
            return None if so_far is None else so_far.aborted()
        self.accounts_for_tokens = part.weight_runs is not None
        versions = token_versions(part, crossing.possible)
        if versions is None:
            _log.warning(
                "answer_discarded", request=request_id, weights=part.weight_version, tokens=len(part.token_ids)
            )
            self.lose()
            return None if so_far is None else so_far.aborted()
        self.find()
        return part, versions

    async def _attempt(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        delay_s: float,
        grown: Listener | None,
    ) -> tuple[Generated, list[int]] | None:
        return await self.attempt(input_ids, settings, request_id=request_id, delay_s=delay_s, grown=grown)


class SpreadSampler(Completing):
    """One policy on several engines, each with weights of its own. A request goes to one of them; what an engine leaves
    undone, another may finish, and every token has the version of the engine that sampled it.
    """

    def __init__(self, engines: Sequence[PolicySampler], *, backoff: FullJitter = _BACKOFF) -> None:
        super().__init__(backoff=backoff)
        self._engines = engines
        self._homes = PrefixHomes()
        self._under_way = [0] * len(engines)
        self._sent = [0] * len(engines)

    @property
    def sent(self) -> tuple[int, ...]:
        """Requests ever given to each engine."""
        return tuple(self._sent)

    async def _attempt(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        delay_s: float,
        grown: Listener | None,
    ) -> tuple[Generated, list[int]] | None:
        if len(self._engines) == 1:
            self._sent[0] += 1
            return await self._engines[0].attempt(
                input_ids, settings, request_id=request_id, delay_s=delay_s, grown=grown
            )
        place = chosen(
            home=self._homes.home(input_ids),
            loads=self._under_way,
            sent=self._sent,
            usable=[not engine.away and engine.gate.is_open for engine in self._engines],
        )
        self._sent[place] += 1
        self._under_way[place] += 1
        self._homes.note(input_ids, place)
        try:
            answer = await self._engines[place].attempt(
                input_ids, settings, request_id=request_id, delay_s=delay_s, grown=grown
            )
        finally:
            self._under_way[place] -= 1
        if answer is not None:
            self._homes.note([*input_ids, *answer[0].token_ids], place)
        return answer


def _rest(settings: SamplingSettings, *, tokens_so_far: int, attempt: int) -> SamplingSettings:
    """What is still to be asked for. The random numbers of the part before must not be drawn again."""
    seed = settings.seed if settings.seed is None or attempt == 0 else derived_seed(settings.seed, "part", attempt)
    return replace(settings, max_new_tokens=settings.max_new_tokens - tokens_so_far, seed=seed)


def _uncertain_tail(settings: SamplingSettings) -> int:
    """How many of the last tokens may be the beginning of a stop text.

    The engine looks for it in what it generates, not in what it is given. So these are drawn again, and a text that
    begins before an abort and ends after it is found. Each token has at least one byte of it.
    """
    return max((len(text.encode()) for text in settings.stop), default=1) - 1


def spans_of(versions: Iterable[int]) -> tuple[Span, ...]:
    return tuple(model_span(len(list(run)), version=version) for version, run in groupby(versions))


def derived_seed(seed: int, *path: str | int) -> int:
    """A seed of 31 bits for what the path names, such as a sample or a turn. Two paths share a seed only by chance.
    Sums of numbers would share them: sample 0's turn 1 would be sample 1's turn 0.
    """
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little") >> 1
