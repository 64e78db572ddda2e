"""What an API server answers, read with suspicion: it may be another team's, and what it stores was written by many.

Every answer has a bound on its bytes, and none is decompressed, as half a megabyte can become gigabytes. Names,
versions, labels and owners have their types, so that no reader meets a list where it expects a text. An object that is
nested deeper than any reader's stack allows is handed on without its content, so that it fails alone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.kube.errors import TooLarge, Unreachable
from trimtab.kube.resources import Object

UNREADABLE = "unreadable"
"""In the place of an object's content: why it was left out."""
MAX_DEPTH = 100
_MEBIBYTE = 1 << 20
# In JSON no text of an object can be this: the API server keeps control characters out of names and keys, and a value
# that is meant to look so fails its own object.
_CUT = "\x00nested too deep"
_CUT_JSON = b'"\\u0000nested too deep"'
# Texts first, so that brackets in them do not count. One that does not end matches to the end, or each quote in it
# would be tried again.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class AnswerLimits:
    """Of one API server."""

    answer_bytes: int
    """Of one answer that is no stream. A list that is larger is asked for in smaller pages."""
    line_bytes: int
    """Of one change in a watch."""
    objects: int
    """Of one kind, in a list or in a copy that follows a watch."""


OWN_SERVER = AnswerLimits(answer_bytes=16 * _MEBIBYTE, line_bytes=8 * _MEBIBYTE, objects=1_000_000)
"""An object has 3 MiB at most on its way in."""
OTHERS_SERVER = AnswerLimits(answer_bytes=4 * _MEBIBYTE, line_bytes=4 * _MEBIBYTE, objects=50_000)

_Text = Annotated[str, Meta(min_length=1, max_length=253)]
_Time = Annotated[str, Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z\Z")]


class _Owner(msgspec.Struct, frozen=True):
    kind: _Text
    name: _Text
    uid: _Text
    controller: bool | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: _Text
    uid: _Text
    resource_version: Annotated[str, Meta(pattern=r"\A[0-9]{1,20}\Z")]
    namespace: Annotated[str, Meta(max_length=63)] | None = None
    generation: int | None = None
    creation_timestamp: _Time | None = None
    deletion_timestamp: _Time | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[_Owner] | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    data: dict[str, str] | None = None


async def read_bounded(chunks: AsyncIterable[bytes], *, limit: int, call: str) -> bytes:
    """Raises TooLarge as soon as there is more."""
    pieces, size = [], 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"{call}: the answer has more than {limit} bytes")
        pieces.append(chunk)
    return b"".join(pieces)


async def decoded(body: bytes, *, call: str) -> Object:
    """The JSON mapping in it. Raises Unreachable."""
    try:
        answer = msgspec.json.decode(body)
    except RecursionError:
        # Slow for its size, so beside the event loop: an author may send as many as the server takes.
        answer = await in_daemon_thread(lambda: _decoded_flat(body, call=call), name="deep answer")
    except (msgspec.DecodeError, UnicodeError):
        raise Unreachable(f"{call}: the answer is no JSON") from None
    if not isinstance(answer, dict):
        raise Unreachable(f"{call}: the answer is no object; is this a Kubernetes API server?")
    return answer


def checked(item: Any, *, call: str) -> Object:
    """The same object, once its metadata is what the API says. Raises Unreachable, which quotes nothing of it."""
    # By a depth of our own: how deep a decoder goes differs between versions of Python.
    if _is_too_deep(item):
        return _emptied(item)
    try:
        msgspec.convert(item, _Object)
    except msgspec.ValidationError as error:
        where = str(error).rpartition(" - at ")[2][:200]
        raise Unreachable(f"{call}: the server sends what is no object of the API, at {where}") from None
    return dict(item)


def checked_items(answer: Object, *, call: str) -> list[Object]:
    """Of a list."""
    items = answer.get("items")
    if items is not None and not isinstance(items, list):
        raise Unreachable(f"{call}: the server sends a list without items")
    return [checked(item, call=call) for item in items or ()]


def _decoded_flat(body: bytes, *, call: str) -> Any:
    try:
        answer = msgspec.json.decode(b"".join(_flat(body)))
    except (msgspec.DecodeError, UnicodeError):
        raise Unreachable(f"{call}: the answer is no JSON") from None
    if not isinstance(answer, dict):
        return answer
    if isinstance(items := answer.get("items"), list):
        return {**answer, "items": [_emptied(item) if _is_cut(item) else item for item in items]}
    if isinstance(item := answer.get("object"), dict) and _is_cut(item):
        return {**answer, "object": _emptied(item)}
    return _emptied(answer) if _is_cut(answer) else answer


def _flat(body: bytes) -> Iterator[bytes]:
    """The same text with what is too deep cut out."""
    depth, taken = 0, 0
    for token in _TOKEN.finditer(body):
        match body[token.start() : token.start() + 1]:
            case b"[" | b"{":
                depth += 1
                if depth == MAX_DEPTH + 1:
                    yield body[taken : token.start()] + _CUT_JSON
            case b"]" | b"}":
                depth -= 1
                if depth == MAX_DEPTH:
                    taken = token.end()
    yield body[taken:] if depth <= MAX_DEPTH else b""


def _is_too_deep(item: Any) -> bool:
    return next(islice(_levels(item), MAX_DEPTH + 1, None), None) is not None


def _is_cut(item: Any) -> bool:
    """Whether something was cut out of it, at any depth that is left."""
    return any(_CUT in level for level in _levels(item))


def _levels(item: Any) -> Iterator[list[Any]]:
    """What lies in it, level by level: no reader's stack grows with its depth."""
    level = [item]
    while level:
        yield level
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        level = below


def _emptied(item: Any) -> Object:
    """What names it, and why there is no more."""
    if not isinstance(item, dict) or not isinstance(item.get("metadata"), dict):
        return {}
    kept = {name: item[name] for name in ("apiVersion", "kind", "metadata") if name in item}
    metadata = {name: value for name, value in kept["metadata"].items() if name != "managedFields"}
    why = f"it is nested deeper than {MAX_DEPTH} levels: make what its free-form fields hold flatter"
    return {**kept, "metadata": metadata, UNREADABLE: why}
