"""The client of the engine contract: SGLang's HTTP surface, with a deadline and a typed error on every call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp

PauseMode = Literal["abort", "retract", "in_place"]


class EngineError(RuntimeError):
    """Something between us and a generation went wrong; `kind` names it in trajectories and metrics."""

    kind = "engine-error"


class EngineUnavailable(EngineError):
    """Nobody answers, or the connection broke."""

    kind = "engine-unavailable"


class EngineTimeout(EngineError):
    """No answer within the deadline."""

    kind = "engine-timeout"


class EngineOverloaded(EngineError):
    """The engine's queue is full; the same request may succeed later."""

    kind = "engine-overloaded"


class EngineRefused(EngineError):
    """The engine understood and said no: repeating the request will not help."""

    kind = "engine-refused"


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How tokens are drawn."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What one request brought, finished or not."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length", "abort"]
    weight_version: str
    """The engine's own word on its weights when it answered."""


class EngineClient:
    """One engine by its URL."""

    def __init__(self, url: str, *, request_timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._request_timeout_s = request_timeout_s
        # No limit on connections: concurrency is bounded by the worker, and a pause must get through a full pool.
        # No timeout of the session's own either: every call brings its deadline.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def generate(self, input_ids: Sequence[int], settings: SamplingSettings, *, request_id: str) -> Generated:
        sampling: dict[str, Any] = {
            "max_new_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
        }
        if settings.seed is not None:
            sampling["sampling_seed"] = settings.seed
        body = {"rid": request_id, "input_ids": list(input_ids), "sampling_params": sampling, "return_logprob": True}
        answer = await self._post("/generate", body, timeout_s=self._request_timeout_s)
        try:
            meta = answer["meta_info"]
            pairs = meta["output_token_logprobs"]
            reason = meta["finish_reason"]
            generated = Generated(
                token_ids=tuple(int(pair[1]) for pair in pairs),
                logprobs=tuple(float(pair[0]) for pair in pairs),
                finish=reason["type"],
                weight_version=str(meta["weight_version"]),
            )
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise EngineError(f"/generate answered without {error}") from None
        if generated.finish == "abort" and reason.get("status_code"):
            # SGLang answers some refusals this way, with 200 around it.
            raise _refusal("/generate", int(reason["status_code"]), str(reason.get("message", ""))[:500])
        if generated.finish not in ("stop", "length", "abort"):
            raise EngineError(f"/generate ended for a reason we do not know: {generated.finish!r}")
        if not all(map(math.isfinite, generated.logprobs)):
            raise EngineError("/generate answered with a logprob that is not finite: are the weights damaged?")
        return generated

    async def pause(self, mode: PauseMode, *, timeout_s: float) -> None:
        await self._post("/pause_generation", {"mode": mode}, timeout_s=timeout_s)

    async def resume(self, *, timeout_s: float) -> None:
        await self._post("/continue_generation", {}, timeout_s=timeout_s)

    async def update_weights_from_disk(self, folder: Path, *, weight_version: str, timeout_s: float) -> None:
        # flush_cache=false: SGLang asserts that nothing runs when it flushes, and a paused engine may hold requests.
        body = {"model_path": str(folder), "weight_version": weight_version, "flush_cache": False}
        await self._post("/update_weights_from_disk", body, timeout_s=timeout_s)

    async def wait_healthy(self, *, timeout_s: float, poll_s: float = 0.2) -> None:
        """Until the engine answers /health; a model may take minutes to load."""
        end = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                await self._call("GET", "/health", None, timeout_s=5.0)
            except EngineError as error:
                if asyncio.get_running_loop().time() + poll_s > end:
                    raise EngineTimeout(f"engine not healthy within {timeout_s:.0f} s: {error}") from error
                await asyncio.sleep(poll_s)
            else:
                return

    async def _post(self, path: str, body: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        return await self._call("POST", path, body, timeout_s=timeout_s)

    async def _call(self, method: str, path: str, body: dict[str, Any] | None, *, timeout_s: float) -> dict[str, Any]:
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(method, self._url + path, json=body) as response,
            ):
                if response.status >= 400:
                    raise _refusal(path, response.status, (await response.text())[:500])
                if response.content_type != "application/json":
                    return {}
                answer = await response.json()
        except TimeoutError:
            raise EngineTimeout(f"{path} did not answer within {timeout_s:.3g} s") from None
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"{path}: {error or type(error).__name__}") from None
        except ValueError as error:
            raise EngineError(f"{path} did not answer with JSON: {error}") from None
        if not isinstance(answer, dict):
            raise EngineError(f"{path} answered with a {type(answer).__name__}")
        return answer


def _refusal(path: str, status: int, text: str) -> EngineError:
    if status == 429:
        return EngineOverloaded(f"{path}: {text}")
    if status >= 500:
        return EngineUnavailable(f"{path}: {status} {text}")
    return EngineRefused(f"{path}: {status} {text}")
