"""A response of OpenAI's, whole and as events: items that open, grow and close, and the response around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trimtab.rollout.gateway.exchange import Answer, GatewayError, Piece
from trimtab.rollout.gateway.protocols.openai_errors import openai_failure
from trimtab.rollout.gateway.protocols.progress import Progress
from trimtab.rollout.gateway.protocols.surface import Stamp, event

Kind = Literal["reasoning", "message", "function_call"]
_PREFIXES: Mapping[Kind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a response says whatever its answer is."""

    role: str
    stamp: Stamp
    repeated: Mapping[str, Any]

    def response(self, status: str, items: Sequence[Mapping[str, Any]] = (), **rest: Any) -> dict[str, Any]:
        return {
            "id": f"resp_{self.stamp.ident}",
            "object": "response",
            "created_at": self.stamp.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.role,
            "output": list(items),
            "usage": None,
            **self.repeated,
            **rest,
        }

    def finished(self, answer: Answer, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        cut = answer.finish == "length"
        return self.response(
            "incomplete" if cut else "completed",
            items,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage={
                "input_tokens": answer.prompt_tokens,
                "input_tokens_details": {"cached_tokens": answer.cached_tokens},
                "output_tokens": answer.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": answer.prompt_tokens + answer.completion_tokens,
            },
        )


class ResponseWriter:
    """One item is open at a time. What is sent at the end is what was sent in parts, under the same ids."""

    def __init__(self, form: Form, stamp: Stamp) -> None:
        self._form = form
        self._stamp = stamp
        self._progress = Progress(0)
        self._sent = 0
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._answer: Answer | None = None

    def begin(self) -> Iterable[bytes]:
        yield self._event("response.created", response=self._form.response("in_progress"))
        yield self._event("response.in_progress", response=self._form.response("in_progress"))

    def piece(self, piece: Piece) -> Iterable[bytes]:
        begins = self._progress.take(piece)
        if piece.reasoning:
            yield from self._opened("reasoning")
            yield self._grow("response.reasoning_text.delta", piece.reasoning, content_index=0)
        if piece.text:
            yield from self._opened("message")
            yield self._grow("response.output_text.delta", piece.text, content_index=0, logprobs=[])
        if piece.call is not None:
            if begins:
                yield from self._close()
                yield from self._opened("function_call", call_id=piece.call.call_id, name=piece.call.name)
            if piece.call.arguments:
                yield self._grow("response.function_call_arguments.delta", piece.call.arguments)

    def answer(self, index: int, answer: Answer) -> Iterable[bytes]:
        for missing in self._progress.missing(answer):
            yield from self.piece(missing)
        yield from self._close("incomplete" if answer.finish == "length" else "completed")
        self._answer = answer

    def end(self) -> Iterable[bytes]:
        assert self._answer is not None
        response = self._form.finished(self._answer, self._items)
        yield self._event(f"response.{response['status']}", response=response)

    def fail(self, error: GatewayError) -> Iterable[bytes]:
        status, body = openai_failure(error)
        code = "server_error" if status >= 500 else "rate_limit_exceeded" if status == 429 else "invalid_prompt"
        told = {"code": code, "message": error.message}
        yield self._event("error", **told, param=body["error"]["param"])
        yield self._event("response.failed", response=self._form.response("failed", self._items, error=told))

    def items(self) -> Sequence[Mapping[str, Any]]:
        return self._items

    def _opened(self, kind: Kind, **named: str) -> Iterable[bytes]:
        if self._open is not None and self._open["type"] == kind and not named:
            return
        yield from self._close()
        ident = f"{_PREFIXES[kind]}_{self._stamp.ident}_{len(self._items)}"
        self._open = _empty(kind, ident, **named)
        yield self._item_event("response.output_item.added", status="in_progress")
        if kind != "function_call":
            yield self._part_event("response.content_part.added", _part(kind, ""))

    def _grow(self, name: str, more: str, **rest: Any) -> bytes:
        assert self._open is not None
        if self._open["type"] == "function_call":
            self._open["arguments"] += more
        else:
            self._open["content"][0]["text"] += more
        return self._event(name, **self._place(), delta=more, **rest)

    def _close(self, status: str = "completed") -> Iterable[bytes]:
        if self._open is None:
            return
        kind: Kind = self._open["type"]
        if kind == "function_call":
            done = {"arguments": self._open["arguments"], "name": self._open["name"]}
            yield self._event("response.function_call_arguments.done", **self._place(), **done)
        else:
            text = self._open["content"][0]["text"]
            if kind == "message":
                yield self._event("response.output_text.done", **self._place(), content_index=0, text=text, logprobs=[])
            else:
                yield self._event("response.reasoning_text.done", **self._place(), content_index=0, text=text)
            yield self._part_event("response.content_part.done", _part(kind, text))
        yield self._item_event("response.output_item.done", status=status)
        self._items.append(self._open)
        self._open = None

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._items)}

    def _item_event(self, name: str, *, status: str) -> bytes:
        assert self._open is not None
        self._open["status"] = status
        shown = dict(self._open)
        if status == "in_progress" and "content" in shown:
            shown["content"] = []  # its part is announced next
        return self._event(name, output_index=len(self._items), item=shown)

    def _part_event(self, name: str, part: Mapping[str, Any]) -> bytes:
        return self._event(name, **self._place(), content_index=0, part=part)

    def _event(self, name: str, /, **data: Any) -> bytes:
        self._sent += 1
        return event({"type": name, "sequence_number": self._sent - 1, **data}, name=name)


def items_of(answer: Answer, stamp: Stamp) -> Sequence[Mapping[str, Any]]:
    """The items that a stream of the answer would come to."""
    writer = ResponseWriter(Form(role="", stamp=stamp, repeated={}), stamp)
    for _ in writer.answer(0, answer):
        pass
    return writer.items()


def _empty(kind: Kind, ident: str, **named: str) -> dict[str, Any]:
    item: dict[str, Any] = {"id": ident, "type": kind}
    if kind == "function_call":
        return item | named | {"arguments": ""}
    if kind == "reasoning":
        item["summary"] = []
    else:
        item["role"] = "assistant"
    return item | {"content": [_part(kind, "")]}


def _part(kind: Kind, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
