"""Stands between a worker and its engine and writes down every token that passes, streamed or not, when it passes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestServer

from trimtab.fabric.wire.spans import Producer
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.rollout.workflows.forest import Row

_EVENT_END = b"\n\n"
_NO_MORE = b"[DONE]"


class EngineTap:
    """Knows a token by all tokens before it, its logprob and the version that sampled it."""

    def __init__(self) -> None:
        self.answers = 0
        self.streams = 0
        self.open_streams = 0
        self.broken = 0
        """Streams that ended before their end."""
        self.turned_away = 0
        self.lost = 0
        """Requests that found no engine."""
        self._seen: Counter[tuple[int, float, int]] = Counter()

    @property
    def sampled(self) -> int:
        """Tokens that passed."""
        return self._seen.total()

    def check(self, rows: Iterable[Row | Trajectory]) -> int:
        """Every token that is trained has passed here, behind the very tokens that it is trained behind, and is trained
        no more often than it passed. How many.
        """
        trained: Counter[tuple[int, float, int]] = Counter()
        for row in rows:
            logprobs = iter(row.logprobs)
            history, at = 0, 0
            for span in row.spans:
                for token in row.token_ids[at : at + span.length]:
                    history = hash((history, token))
                    if span.producer is Producer.MODEL:
                        assert span.version is not None
                        trained[history, _stored(next(logprobs)), span.version] += 1
                at += span.length
        assert not trained - self._seen, "trained, and never sampled so"
        return trained.total()

    def _note(self, part: dict[str, Any], *, history: int, at: int) -> tuple[int, int]:
        """Behind `at` tokens of the answer. The history and the number of tokens behind the part."""
        meta = part.get("meta_info", {})
        for logprob, token, _ in meta.get("output_token_logprobs", ()):
            history = hash((history, token))
            label = next(span["version"] for span in meta["weight_versions"] if span["start"] <= at < span["end"])
            self._seen[history, _stored(logprob), int(label.rpartition(".")[2])] += 1
            at += 1
        return history, at

    @asynccontextmanager
    async def before(self, url: str) -> AsyncIterator[str]:
        """The engine's other address."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._passed)
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(base_url=url, timeout=timeout) as self._session,
            TestServer(application) as server,
        ):
            yield str(server.make_url("/"))

    async def _passed(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            async with self._session.request(request.method, request.path_qs, data=body) as answer:
                self.turned_away += answer.status == 429
                if answer.content_type == "text/event-stream":
                    return await self._streamed(request, answer, json.loads(body)["input_ids"])
                said = await answer.read()
                if request.path == "/generate" and answer.status == 200:
                    self.answers += 1
                    self._note(json.loads(said), history=_history(json.loads(body)["input_ids"]), at=0)
                return web.Response(status=answer.status, body=said, content_type=answer.content_type)
        except (aiohttp.ClientError, ConnectionError) as error:
            self.lost += 1
            return web.Response(status=502, text=str(error))

    async def _streamed(
        self, request: web.Request, answer: aiohttp.ClientResponse, input_ids: Sequence[int]
    ) -> web.StreamResponse:
        self.streams += 1
        self.open_streams += 1
        response = web.StreamResponse()
        response.content_type = answer.content_type
        history, at, held = _history(input_ids), 0, b""
        try:
            await response.prepare(request)
            async for data in answer.content.iter_any():
                held += data
                *events, held = held.split(_EVENT_END)
                for said in (event.removeprefix(b"data: ") for event in events):
                    if said != _NO_MORE:
                        history, at = self._note(json.loads(said), history=history, at=at)
                await response.write(data)
            await response.write_eof()
        except (aiohttp.ClientError, ConnectionError):
            self.broken += 1
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.open_streams -= 1
        return response


def _stored(logprob: float) -> float:
    """As rows have it."""
    return float(np.float32(min(logprob, 0.0)))


def _history(token_ids: Iterable[int]) -> int:
    history = 0
    for token in token_ids:
        history = hash((history, token))
    return history
