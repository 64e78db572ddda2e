"""Listens before an engine: every token of its answers, behind which others it stood, its logprob and its weights."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from tests.support.rollout.engine_proxy import Forward
from trimtab.fabric.wire.spans import Producer
from trimtab.rollout.engines import responses
from trimtab.rollout.policy.version_gate import position_of
from trimtab.rollout.workflows.forest import Row


@dataclass(frozen=True)
class Heard:
    """A token by all that stood before it and itself."""

    tokens: bytes
    logprob: float
    version: int


class Tap:
    def __init__(self) -> None:
        self._heard: Counter[Heard] = Counter()
        self.lost = 0
        """Requests that found no engine."""

    async def listen(self, request: web.Request, forward: Forward) -> web.Response:
        try:
            response = await forward(request)
        except (aiohttp.ClientError, ConnectionError):
            self.lost += 1
            return web.Response(status=502, text="the engine is gone")
        if request.path == "/generate" and response.status == 200:
            assert isinstance(response.body, bytes)
            asked = json.loads(await request.read())["input_ids"]
            part = responses.generated(json.loads(response.body))
            assert part.weight_runs is not None
            versions = [run.weight_version for run in part.weight_runs for _ in range(run.length)]
            self._heard.update(_heard(asked, part.token_ids, part.logprobs, map(_version, versions)))
        return response

    def check(self, rows: Iterable[Row]) -> int:
        """Every trained token is one that was heard, and is trained no more often than that. How many there are."""
        trained: Counter[Heard] = Counter()
        for row in rows:
            logprobs, at = iter(row.logprobs), 0
            for span in row.spans:
                if span.producer is Producer.MODEL:
                    assert span.version is not None
                    said = row.token_ids[at : at + span.length]
                    said_with = [next(logprobs) for _ in said]
                    trained.update(_heard(row.token_ids[:at], said, said_with, [span.version] * span.length))
                at += span.length
        assert not trained - self._heard, "trained, and never sampled so"
        return trained.total()


def _heard(
    before: Sequence[int], said: Sequence[int], logprobs: Sequence[float], versions: Iterable[int]
) -> Iterable[Heard]:
    digest = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in before))
    for token, logprob, version in zip(said, logprobs, versions, strict=True):
        digest.update(token.to_bytes(4, "little"))
        yield Heard(digest.digest(), logprob, version)


def _version(label: str) -> int:
    position = position_of(label)
    assert position is not None
    return position.version
