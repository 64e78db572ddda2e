"""A bare view of an engine's HTTP surface: bodies in, status and JSON out, nothing smoothed over."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiohttp

from tests.support.polling import eventually

Answer = dict[str, Any]


class Engine:
    def __init__(self, session: aiohttp.ClientSession, *, ended: Callable[[], int | None] = lambda: None) -> None:
        self._session = session
        self._ended = ended

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._session.get(path) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        async with self._session.post(path, json=body) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def generate(self, prompt: Sequence[int], *, rid: str | None = None, **sampling: object) -> Answer:
        body = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}
        status, answer = await self.post("/generate", body | ({} if rid is None else {"rid": rid}))
        assert status == 200, answer
        assert isinstance(answer, dict)
        return answer

    async def stream(
        self, prompt: Sequence[int], *, rid: str | None = None, **sampling: object
    ) -> AsyncIterator[Answer]:
        """The parts of an answer when they come, up to the one that says that there are no more."""
        body = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True, "stream": True}
        async with self._session.post("/generate", json=body | ({} if rid is None else {"rid": rid})) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            ended = False
            async for line in response.content:
                if line.strip():
                    assert not ended
                    assert line.startswith(b"data: ")
                    data = line.removeprefix(b"data: ").strip()
                    ended = data == b"[DONE]"
                    if not ended:
                        yield json.loads(data)
            assert ended

    async def held(self) -> int:
        """Requests it runs or lets wait."""
        _, answer = await self.get("/v1/loads")
        return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in answer["loads"])

    async def until_held(self, count: int) -> None:
        async def holds_them() -> bool:
            return await self.held() == count

        await eventually(holds_them, timeout_s=60.0, interval_s=0.005, ended=self._ended)

    async def repeats_by_seed(self) -> bool:
        """SGLang does so only if it was started to; an engine that does not mention it always does."""
        _, info = await self.get("/server_info")
        return bool(info.get("enable_deterministic_inference", True))

    async def wait_healthy(self) -> None:
        async def healthy() -> bool:
            try:
                return (await self.get("/health"))[0] == 200
            except aiohttp.ClientConnectionError:
                return False

        await eventually(healthy, timeout_s=120.0, ended=self._ended)

    async def settle(self) -> None:
        await self.post("/continue_generation", {})
        await self.post("/abort_request", {"abort_all": True})

        async def empty() -> bool:
            return await self.held() == 0

        await eventually(empty, timeout_s=30.0, ended=self._ended)


def tokens_of(answer: Answer) -> list[int]:
    return [int(entry[1]) for entry in answer["meta_info"]["output_token_logprobs"]]


def logprobs_of(answer: Answer) -> list[float]:
    return [float(entry[0]) for entry in answer["meta_info"]["output_token_logprobs"]]


class Gathered:
    """A stream as it comes. Each part repeats what came before, or says only what is new."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, float]] = []
        self.parts = 0
        self.finish: dict[str, Any] | None = None

    def add(self, part: Answer) -> None:
        assert self.finish is None, "nothing comes behind the end"
        meta = part["meta_info"]
        total = meta["output_token_logprobs_length"]
        listed = [(int(token), float(logprob)) for logprob, token, _ in meta["output_token_logprobs"]]
        new = listed[len(self.pairs) : total] if len(listed) >= total else listed
        self.pairs += new
        assert len(self.pairs) == total
        self.parts += 1
        self.finish = meta["finish_reason"]

    @property
    def tokens(self) -> list[int]:
        return [token for token, _ in self.pairs]

    @property
    def logprobs(self) -> list[float]:
        return [logprob for _, logprob in self.pairs]
