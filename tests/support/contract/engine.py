"""A bare view of an engine's HTTP surface: bodies in, status and JSON out, nothing smoothed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
