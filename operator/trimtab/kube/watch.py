"""One watch request as a stream of changes, until the server ends it or says that the version is too old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from trimtab.kube.bounded_response import checked, decoded
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import TooLarge, Unreachable, api_error
from trimtab.kube.resources import Object, Resource

SERVER_ENDS_AFTER_S = 290
# The server sends bookmarks about once a minute; a stream without them is dead though its connection may look alive.
IDLE_S = 75.0


class ChangeType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


_TYPES = frozenset(ChangeType)
_UNKNOWN = 500


@dataclass(frozen=True, kw_only=True)
class Change:
    type: ChangeType
    object: Object

    @property
    def resource_version(self) -> str:
        return str(self.object["metadata"]["resourceVersion"])


async def watch(
    client: KubeClient,
    resource: Resource,
    *,
    resource_version: str,
    namespace: str | None = None,
    label_selector: str | None = None,
    field_selector: str | None = None,
    idle_s: float = IDLE_S,
) -> AsyncGenerator[Change, None]:
    """Changes after `resource_version`. Gone: it is too old, list again. Unreachable: the stream broke, go on from the
    last version seen. It simply ends after some minutes, as the server has its limit. Use it in `aclosing`, or its
    connection stays open for as long."""
    parameters = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": str(SERVER_ENDS_AFTER_S),
    }
    if label_selector:
        parameters["labelSelector"] = label_selector
    if field_selector:
        parameters["fieldSelector"] = field_selector
    async with client.stream(resource, namespace=namespace, parameters=parameters, idle_s=idle_s) as content:
        async for line in _lines(content, longest=client.limits.line_bytes, idle_s=idle_s):
            yield await _change(line)


async def _change(line: bytes) -> Change:
    event = await decoded(line, call="watch")
    kind, item = event.get("type"), event.get("object")
    if kind == "ERROR" and isinstance(item, dict):
        code = item.get("code")
        raise api_error(item, code=code if isinstance(code, int) and code else _UNKNOWN, call="watch")
    if not isinstance(item, dict) or not isinstance(kind, str) or kind not in _TYPES:
        raise Unreachable("watch: the stream carries something that is no event")
    if kind == ChangeType.BOOKMARK:
        return Change(type=ChangeType.BOOKMARK, object=_bookmark(item))
    return Change(type=ChangeType(kind), object=checked(item, call="watch"))


def _bookmark(item: Object) -> Object:
    """It has a version and nothing else."""
    metadata = item.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str):
        raise Unreachable("watch: the stream carries a bookmark without a version")
    return {"metadata": {"resourceVersion": version}}


async def _lines(content: aiohttp.StreamReader, *, longest: int, idle_s: float) -> AsyncGenerator[bytes, None]:
    """Lines of a mebibyte and more, which the reader's own readline refuses, and up to `longest`. A line that the end
    of the stream cuts off is dropped: its change comes again after the reconnection. Bytes that never become a line are
    no sign of life, and a stream that the server does not end is ended here."""
    clock = asyncio.get_running_loop().time
    began = heard = clock()
    pieces: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            if size + len(line) > longest:
                raise TooLarge(f"watch: a change has more than {longest} bytes")
            yield b"".join((*pieces, line))
            pieces.clear()
            size, heard = 0, clock()
        if rest:
            pieces.append(rest)
            size += len(rest)
        if size > longest:
            raise TooLarge(f"watch: a change has more than {longest} bytes")
        if clock() - heard > idle_s:
            raise Unreachable(f"watch: no whole change within {idle_s:.0f} s")
        if clock() - began > SERVER_ENDS_AFTER_S + idle_s:
            return
