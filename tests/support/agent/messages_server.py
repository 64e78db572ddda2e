"""A Messages API on this machine: real HTTP, the real wire format, and a script in place of the model.

A script is a function from request to answer. What the real API refuses (a tool call without its result, no version,
max_tokens of 0) is refused here too.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import web

_BYTES_PER_TOKEN = 3


@dataclass(frozen=True)
class Request:
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def tool_results(self) -> list[dict[str, Any]]:
        """All so far, oldest first."""
        return [block for message in self.messages for block in _blocks(message) if block["type"] == "tool_result"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes over the wire."""

    status: int = 200
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    cut_at: int | None = None
    """Bytes after which the connection is cut, though more were announced."""


Script = Callable[[Request], "Answer | Awaitable[Answer]"]

_ids = count(1)


def message(
    *content: dict[str, Any],
    stop_reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
    after_s: float = 0.0,
    cut_at: int | None = None,
) -> Answer:
    """An answer of the model. Without a stop reason, the one that fits the content; without usage, a plausible one."""
    uses_tools = any(block.get("type") == "tool_use" for block in content)
    body = {
        "id": f"msg_{next(_ids):024d}",
        "type": "message",
        "role": "assistant",
        "model": "claude-local",
        "content": list(content),
        "stop_reason": stop_reason or ("tool_use" if uses_tools else "end_turn"),
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 1000, "output_tokens": len(json.dumps(content)) // _BYTES_PER_TOKEN},
    }
    return Answer(body=json.dumps(body).encode(), after_s=after_s, cut_at=cut_at)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(tool: str, **tool_input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{next(_ids):024d}", "name": tool, "input": tool_input}


def error(status: int, kind: str, *, words: str = "no", headers: Mapping[str, str] | None = None) -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": words}, "request_id": f"req_{next(_ids)}"}
    return Answer(status=status, body=json.dumps(body).encode(), headers=headers or {})


def in_turn(answers: Iterable[Answer]) -> Script:
    """One after the other; the last one again and again."""
    rest = list(answers)

    def script(_: Request) -> Answer:
        return rest.pop(0) if len(rest) > 1 else rest[0]

    return script


def follow_formula(request: Request) -> Answer:
    """A model that looks at everything once and then does what the formula recommends."""
    results = request.tool_results
    if not results:
        return message(text("I look first."), call("read_report"), call("read_history"), call("list_instances"))
    report = next(shown for result in results if "formula" in (shown := json.loads(result["content"])))
    targets = report["formula"]["targets"]
    return message(call("propose", targets=targets, victims=[], reason="As the formula says."))


class MessagesServer:
    """Scriptable while it runs. Remembers what it was asked."""

    def __init__(self, *, api_key: str) -> None:
        self.script: Script = follow_formula
        self.requests: list[Request] = []
        self.url = ""
        self.api_key = api_key

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MessagesServer]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/messages", self._post)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}"
            yield self
        finally:
            await runner.cleanup()

    async def _post(self, received: web.Request) -> web.StreamResponse:
        if received.headers.get("authorization") != f"Bearer {self.api_key}":
            return await _send(received, error(401, "authentication_error"))
        request = Request(body=await received.json(), headers=dict(received.headers))
        self.requests.append(request)
        wrong = _refusal(request)
        if wrong is not None:
            return await _send(received, error(400, "invalid_request_error", words=wrong))
        answer = self.script(request)
        return await _send(received, await answer if inspect.isawaitable(answer) else answer)


async def _send(received: web.Request, answer: Answer) -> web.StreamResponse:
    await asyncio.sleep(answer.after_s)
    response = web.StreamResponse(status=answer.status, headers={"content-type": "application/json", **answer.headers})
    response.content_length = len(answer.body)
    await response.prepare(received)
    await response.write(answer.body[: answer.cut_at])
    if answer.cut_at is not None:
        assert received.transport is not None
        received.transport.abort()
        return response
    await response.write_eof()
    return response


def _refusal(request: Request) -> str | None:
    """What is wrong with it, in the API's eyes."""
    if "anthropic-version" not in request.headers:
        return "anthropic-version"
    if not isinstance(request.body.get("max_tokens"), int) or request.body["max_tokens"] < 1:
        return "max_tokens"
    roles = [one["role"] for one in request.messages]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        return "messages: roles must alternate and end with user"
    pending: list[str] = []
    for one in request.messages:
        blocks = _blocks(one)
        if one["role"] == "assistant":
            if not blocks:
                return "messages: empty content"
            pending = [block["id"] for block in blocks if block["type"] == "tool_use"]
            continue
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(pending) or any(b["type"] != "tool_result" for b in blocks[: len(results)]):
            return "tool_use ids were found without tool_result blocks immediately after"
    return None


def _blocks(one: dict[str, Any]) -> list[dict[str, Any]]:
    content = one["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
