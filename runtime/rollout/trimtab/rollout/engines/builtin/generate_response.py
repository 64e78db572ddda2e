"""Answers of POST /generate in SGLang's shape: whole ones, and the parts of one that is streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from trimtab.rollout.engines.builtin.generation import Generation, SampledToken, TextCodec, VersionSpan
from trimtab.rollout.live_text import LiveText, StopGuard

NO_MORE = b"data: [DONE]\n\n"


def event(part: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(part, separators=(",", ":")).encode() + b"\n\n"


def meta_info(generation: Generation, *, latency_s: float) -> dict[str, Any]:
    """Of a generation that has ended."""
    finish: dict[str, Any] = {"type": generation.finish}
    if generation.finish == "length":
        finish["length"] = len(generation.output_ids)
    elif generation.finish == "stop":
        finish["matched"] = generation.matched
    else:
        finish["message"] = "Aborted"
    return {
        "id": generation.request_id,
        "finish_reason": finish,
        "prompt_tokens": len(generation.input_ids),
        "completion_tokens": len(generation.output_ids),
        "cached_tokens": generation.cached_tokens,
        "num_retractions": generation.retractions,
        "weight_version": generation.weight_version,
        "weight_versions": [asdict(span) for span in generation.spans],
        "e2e_latency": latency_s,
        "first_token_seconds": generation.first_token_s,
    }


def logprobs_info(sampled: Iterable[tuple[int, float]], *, total: int) -> dict[str, Any]:
    return {
        "output_token_logprobs": [[logprob, token, None] for token, logprob in sampled],
        "output_token_logprobs_length": total,
    }


class ComingTokens:
    """What the model's thread has sampled of one generation and the event loop has not seen yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unseen: list[SampledToken] = []
        self._ended = False
        self._news = asyncio.Event()

    def add(self, token: SampledToken) -> None:
        """On the model's thread, as `end`."""
        self._loop.call_soon_threadsafe(self._note, token)

    def end(self, done: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._note, None)

    def _note(self, token: SampledToken | None) -> None:
        if token is None:
            self._ended = True
        else:
            self._unseen.append(token)
        self._news.set()

    async def more(self) -> list[SampledToken] | None:
        """All that came since, as soon as there is any; None after the last."""
        # However long: a paused engine samples nothing, and its clients bring deadlines of their own.
        await self._news.wait()
        if not self._ended:
            self._news.clear()
        unseen, self._unseen = self._unseen, []
        return unseen or None


class StreamedParts:
    """One answer in parts, each with the tokens that are new."""

    def __init__(self, codec: TextCodec | None, generation: Generation, *, with_logprobs: bool) -> None:
        self._generation = generation
        self._with_logprobs = with_logprobs
        self._text = None if codec is None else LiveText(codec.decode)
        self._guard = StopGuard(generation.params.stop)
        self._spans: list[VersionSpan] = []
        self._total = 0

    def part(self, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        for token in tokens:
            self._total += 1
            if not self._spans or self._spans[-1].version != token.version:
                self._spans.append(VersionSpan(version=token.version, start=self._total - 1, end=self._total))
            self._spans[-1].end = self._total
        meta: dict[str, Any] = {
            "id": self._generation.request_id,
            "finish_reason": None,
            "prompt_tokens": len(self._generation.input_ids),
            "completion_tokens": self._total,
            "weight_version": tokens[-1].version,
            "weight_versions": [asdict(span) for span in self._spans],
        }
        return self._shaped(meta, [(token.token, token.logprob) for token in tokens], last=False)

    def end(self, *, latency_s: float) -> dict[str, Any]:
        """With the tokens that no part had: the one that ended it is always among them."""
        generation = self._generation
        rest = list(zip(generation.output_ids, generation.logprobs, strict=True))[self._total :]
        self._total = len(generation.output_ids)
        return self._shaped(meta_info(generation, latency_s=latency_s), rest, last=True)

    def _shaped(self, meta: dict[str, Any], sampled: Sequence[tuple[int, float]], *, last: bool) -> dict[str, Any]:
        token_ids = [token for token, _ in sampled]
        if self._with_logprobs:
            meta |= logprobs_info(sampled, total=self._total)
        text = "" if self._text is None else self._guard.feed(self._text.feed(token_ids, last=last), last=last)
        return {"text": text, "output_ids": token_ids, "meta_info": meta}
