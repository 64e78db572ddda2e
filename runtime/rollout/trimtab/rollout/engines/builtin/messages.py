"""Requests and responses of the endpoints in SGLang's shape, and waiting for the model's thread with a deadline."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trimtab.rollout.engines.builtin.generation import SamplingParams
from trimtab.rollout.engines.builtin.scheduler import EngineDeadError

_COMMAND_TIMEOUT_S = 120.0
Body = TypeVar("Body", bound=BaseModel)


class GenerateRequest(BaseModel):
    """One prompt or several, as token ids or text. Fields that are not here are refused by name."""

    model_config = ConfigDict(extra="forbid")

    rid: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    text: str | list[str] | None = None
    sampling_params: SamplingParams = SamplingParams()
    return_logprob: bool = False
    logprob_start_len: int | None = None
    """0 asks for the logprobs of the prompt's tokens, all but the first, with max_new_tokens 0 alone."""
    stream: bool = False
    """Every token as soon as it is there, as SGLang does with --incremental-streaming-output. For one prompt alone."""

    @model_validator(mode="after")
    def _one_prompt_form(self) -> GenerateRequest:
        if (self.input_ids is None) == (self.text is None):
            raise ValueError("give either input_ids or text")
        if not all(self.prompts()):
            raise ValueError("input_ids and text must not be empty")
        if len({isinstance(entry, list) for entry in self.input_ids or ()}) > 1:
            raise ValueError("input_ids must be one list of tokens, or a list of such lists")
        if isinstance(self.rid, list) and len(self.rid) != len(self.prompts()):
            raise ValueError("a list of rid needs as many prompts")
        if self.stream and self.batched:
            raise ValueError("stream: give one prompt, or ask for whole answers")
        if self.scores and (self.stream or not self.return_logprob or self.logprob_start_len != 0):
            raise ValueError(
                "sampling_params.max_new_tokens: 0 needs return_logprob, logprob_start_len 0 and no stream"
            )
        if self.scores and self.sampling_params.temperature <= 0:
            raise ValueError("sampling_params.temperature: no token has a logprob at temperature 0")
        if not self.scores and self.logprob_start_len not in (None, -1):
            raise ValueError("logprob_start_len: only with max_new_tokens 0")
        return self

    def request_ids(self) -> list[str]:
        """Of each prompt: those that the client gave, or new ones."""
        prompts = self.prompts()
        if isinstance(self.rid, str):
            return [f"{self.rid}_{n}" if self.batched else self.rid for n in range(len(prompts))]
        return self.rid or [uuid.uuid4().hex for _ in prompts]

    @property
    def scores(self) -> bool:
        """Whether it asks for the logprobs of what it gives, and for no token."""
        return self.sampling_params.max_new_tokens == 0

    @property
    def batched(self) -> bool:
        """Several prompts are answered with a list."""
        return isinstance(self.text, list) or any(isinstance(entry, list) for entry in self.input_ids or ())

    def prompts(self) -> Sequence[str | list[int]]:
        if isinstance(self.text, str):
            return [self.text]
        if self.text is not None:
            return self.text
        lists = [entry for entry in self.input_ids or () if isinstance(entry, list)]
        return lists or [[entry for entry in self.input_ids or () if isinstance(entry, int)]]


class ValuesRequest(BaseModel):
    """Token ids of one sequence."""

    model_config = ConfigDict(extra="forbid")

    rid: str | None = None
    input_ids: list[int] = Field(min_length=1)


class PauseRequest(BaseModel):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class AbortRequest(BaseModel):
    rid: str = ""
    abort_all: bool = False


class UpdateFromDiskRequest(BaseModel):
    """`load_format` sparse takes the file of `sparse_update`, anything else a folder with a checkpoint."""

    model_path: Path
    load_format: Literal["auto", "safetensors", "sparse"] | None = None
    weight_version: str | None = None
    abort_all_requests: bool = False

    @model_validator(mode="after")
    def _sparse_is_named(self) -> UpdateFromDiskRequest:
        if self.load_format == "sparse" and self.weight_version is None:
            raise ValueError("a sparse update needs the weight_version that it leads to")
        return self


class UpdateVersionRequest(BaseModel):
    new_version: str
    abort_all_requests: bool = True


class WeightsCheckerRequest(BaseModel):
    action: Literal["checksum"]


def error_response(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def bad_request(message: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=error_response(400, message).text, content_type="application/json")


def not_found(message: str) -> web.HTTPNotFound:
    return web.HTTPNotFound(text=error_response(404, message).text, content_type="application/json")


def too_many_requests(message: str) -> web.HTTPTooManyRequests:
    return web.HTTPTooManyRequests(text=error_response(429, message).text, content_type="application/json")


def unavailable(message: str) -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(text=error_response(503, message).text, content_type="application/json")


async def parsed(request: web.Request, kind: type[Body]) -> Body:
    """The body, or a 400 that names the fields."""
    try:
        return kind.model_validate_json(await request.read() or b"{}")
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}" for problem in error.errors()
        )
        raise bad_request(problems) from None


async def carried_out(command: Callable[[], Future[None]]) -> None:
    """Once the model's thread has done it; 503 if that has ended, 504 if it does not come to it."""
    try:
        async with asyncio.timeout(_COMMAND_TIMEOUT_S):
            await asyncio.wrap_future(command())
    except EngineDeadError as dead:
        raise unavailable(str(dead)) from None
    except TimeoutError:
        text = error_response(504, f"the model did not come to it within {_COMMAND_TIMEOUT_S:.0f} s").text
        raise web.HTTPGatewayTimeout(text=text, content_type="application/json") from None
