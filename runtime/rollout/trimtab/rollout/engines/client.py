"""The client of the engine contract: SGLang's HTTP surface, with a deadline and a typed error on every call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from trimtab.rollout.engines import responses
from trimtab.rollout.engines.contract import (
    EngineError,
    EngineLoad,
    EngineRefused,
    EngineTimeout,
    Generated,
    ModelInfo,
    PauseMode,
    Progress,
    SamplingSettings,
    Scored,
    ServerInfo,
    WeightUpdate,
    refusal,
)
from trimtab.rollout.engines.kept_logprobs import likeliest_needed
from trimtab.rollout.engines.session import EngineSession
from trimtab.rollout.engines.streamed_answer import StreamedAnswer

_HEALTH_TIMEOUT_S = 5.0
_HEALTH_POLL_S = 0.2
_MAX_TEXT = 500


class EngineClient(EngineSession):
    """One engine by its URL."""

    def __init__(
        self,
        url: str,
        *,
        request_timeout_s: float,
        salt_prefixes: bool = False,
        whole_logprobs: bool = False,
        vocabulary: int | None = None,
    ) -> None:
        """`salt_prefixes` is for engines that keep prefixes across a weight update, as SGLang must while requests run:
        what was computed with other weights is then not found. The built-in engine forgets them by itself.

        `whole_logprobs` is for engines whose logprobs do not say which tokens were left out, as SGLang's do not.

        `vocabulary` is for engines that end when they are given a token that they do not have, as SGLang does: they are
        not asked.
        """
        super().__init__()
        self._url = url.rstrip("/")
        self._salt_prefixes = salt_prefixes
        self._whole_logprobs = whole_logprobs
        self._vocabulary = vocabulary
        self._request_timeout_s = request_timeout_s

    async def generate(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        weight_version: str,
        progress: Progress | None = None,
    ) -> Generated:
        """`weight_version` is what the engine is believed to serve; which it does, the answer says. It is asked for a
        stream only where somebody listens: one answer at the end costs both sides less.
        """
        body: dict[str, Any] = {
            "rid": request_id,
            "input_ids": self._known(input_ids),
            "sampling_params": settings.sampling_params(),
            "return_logprob": True,
        }
        body |= self._weights_field(weight_version)
        likeliest = likeliest_needed(settings) if self._whole_logprobs else 0
        if likeliest:
            body["top_logprobs_num"] = likeliest
        truncated = settings if likeliest else None
        if progress is None:
            answer = await self._post("/generate", body, timeout_s=self._request_timeout_s)
            return responses.generated(answer, truncated=truncated)
        streamed = StreamedAnswer(progress, truncated=truncated)
        await self._follow(
            "POST",
            self._url + "/generate",
            called="/generate",
            refused=partial(_refusal, "/generate"),
            timeout_s=self._request_timeout_s,
            take=streamed.take,
            json=body | {"stream": True},
        )
        return streamed.whole()

    async def score(
        self, token_ids: Sequence[int], *, temperature: float, request_id: str, weight_version: str
    ) -> Scored:
        """By the same request that generates, for no token. SGLang's logprobs of a prompt are those at temperature 1:
        `trimtab.api.support` refuses others there.
        """
        body: dict[str, Any] = {
            "rid": request_id,
            "input_ids": self._known(token_ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": temperature},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        body |= self._weights_field(weight_version)
        return responses.scored(await self._post("/generate", body, timeout_s=self._request_timeout_s), token_ids)

    async def values(self, token_ids: Sequence[int], *, request_id: str, weight_version: str) -> Scored:
        body = {"rid": request_id, "input_ids": list(token_ids)}
        return responses.valued(await self._post("/values", body, timeout_s=self._request_timeout_s), token_ids)

    def _known(self, token_ids: Sequence[int]) -> list[int]:
        known = list(token_ids)
        if self._vocabulary is not None and known and not 0 <= min(known) <= max(known) < self._vocabulary:
            raise EngineRefused(f"input_ids must lie in [0, {self._vocabulary}): do they come from another model?")
        return known

    def _weights_field(self, weight_version: str) -> Mapping[str, Any]:
        """What a request says of the weights that it is meant for."""
        return {"extra_key": weight_version} if self._salt_prefixes else {}

    async def pause(self, mode: PauseMode, *, timeout_s: float) -> None:
        """Requests that come while the engine is paused wait there."""
        await self._post("/pause_generation", {"mode": mode}, timeout_s=timeout_s)

    async def resume(self, *, timeout_s: float) -> None:
        """Does nothing to an engine that is not paused."""
        await self._post("/continue_generation", {}, timeout_s=timeout_s)

    async def abort(self, request_id: str, *, timeout_s: float) -> None:
        """It is answered with its tokens so far. One that is unknown is no error."""
        if not request_id:
            raise ValueError("request_id is empty: an engine ignores that; use abort_all")
        await self._post("/abort_request", {"rid": request_id}, timeout_s=timeout_s)

    async def abort_all(self, *, timeout_s: float) -> None:
        await self._post("/abort_request", {"rid": "", "abort_all": True}, timeout_s=timeout_s)

    async def flush_cache(self, *, wait_s: float = 0.0, timeout_s: float) -> None:
        """EngineRefused if requests are still held after `wait_s`."""
        await self._call("POST", "/flush_cache", params={"timeout": f"{wait_s:g}"}, timeout_s=timeout_s)

    async def update_weights_from_disk(self, folder: Path, *, weight_version: str, timeout_s: float) -> WeightUpdate:
        """A whole checkpoint."""
        return await self._update("/update_weights_from_disk", {"model_path": str(folder)}, weight_version, timeout_s)

    async def update_weights_from_sparse_file(
        self, file: Path, *, weight_version: str, timeout_s: float
    ) -> WeightUpdate:
        """The changed elements alone, in a file as `builtin.sparse_update` writes it. The built-in engine takes it."""
        body = {"model_path": str(file), "load_format": "sparse"}
        return await self._update("/update_weights_from_disk", body, weight_version, timeout_s)

    async def update_weights_from_tensor(
        self, serialized: Sequence[str], *, load_format: str | None, weight_version: str | None, timeout_s: float
    ) -> WeightUpdate:
        """Tensors in the request itself, one base64 text per rank, between `begin_weight_update` and its end.
        `load_format` may name a custom weight loader that the engine was started with; SGLang takes it.
        """
        body = {"serialized_named_tensors": list(serialized), "load_format": load_format}
        return await self._update("/update_weights_from_tensor", body, weight_version, timeout_s)

    async def begin_weight_update(self, *, timeout_s: float) -> None:
        """SGLang takes tensors only after this, and refuses it until the one before has ended."""
        await self._post("/begin_weight_update", {}, timeout_s=timeout_s)

    async def end_weight_update(self, *, timeout_s: float) -> None:
        await self._post("/end_weight_update", {}, timeout_s=timeout_s)

    async def rename_weights(self, weight_version: str, *, timeout_s: float) -> None:
        """What the engine calls the weights that it serves."""
        body = {"new_version": weight_version, "abort_all_requests": False}
        await self._post("/update_weight_version", body, timeout_s=timeout_s)

    async def model_info(self, *, timeout_s: float) -> ModelInfo:
        return responses.model_info(await self._get("/model_info", timeout_s=timeout_s))

    async def server_info(self, *, timeout_s: float) -> ServerInfo:
        """SGLang asks its scheduler for it, which answers when a weight update that it is at is over."""
        return responses.server_info(await self._get("/server_info", timeout_s=timeout_s))

    async def load(self, *, timeout_s: float) -> EngineLoad:
        return responses.load(await self._get("/v1/loads", params={"include": "core"}, timeout_s=timeout_s))

    async def check_health(self, *, timeout_s: float) -> None:
        """An EngineError if it cannot generate."""
        await self._get("/health", timeout_s=timeout_s)

    async def wait_healthy(self, *, timeout_s: float) -> None:
        """Until the engine answers /health; a model may take minutes to load."""
        end = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                await self.check_health(timeout_s=_HEALTH_TIMEOUT_S)
            except EngineError as error:
                if asyncio.get_running_loop().time() + _HEALTH_POLL_S > end:
                    raise EngineTimeout(f"engine not healthy within {timeout_s:.0f} s: {error}") from error
                await asyncio.sleep(_HEALTH_POLL_S)
            else:
                return

    async def _update(
        self, path: str, body: Mapping[str, Any], weight_version: str | None, timeout_s: float
    ) -> WeightUpdate:
        # flush_cache=false: SGLang asserts that nothing runs when it flushes, and a paused engine may hold requests.
        named = {**body, "weight_version": weight_version, "flush_cache": False}
        return responses.weight_update(path, await self._post(path, named, timeout_s=timeout_s))

    async def _get(self, path: str, *, params: Mapping[str, str] | None = None, timeout_s: float) -> dict[str, Any]:
        return await self._call("GET", path, params=params, timeout_s=timeout_s)

    async def _post(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        return await self._call("POST", path, body=body, timeout_s=timeout_s)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> dict[str, Any]:
        answer = await self._exchange(
            method,
            self._url + path,
            called=path,
            refused=partial(_refusal, path),
            timeout_s=timeout_s,
            json=body,
            params=params,
        )
        return answer.document() if answer.content_type == "application/json" else {}


def _refusal(path: str, response: aiohttp.ClientResponse, text: str) -> EngineError:
    return refusal(path, response.status, text[:_MAX_TEXT])
