"""One watch request as a stream of changes, until the server ends it or says that the version is too old."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Unreachable, api_error
from trimtab.kube.resources import Object, Resource

SERVER_ENDS_AFTER_S = 290
# The server sends bookmarks about once a minute; a stream without them is dead though its connection may look alive.
IDLE_S = 75.0


class ChangeType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


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
        async for line in _lines(content):
            yield _change(line)


def _change(line: bytes) -> Change:
    try:
        event = json.loads(line)
        kind, item = event["type"], event["object"]
    except (ValueError, KeyError, TypeError):
        raise Unreachable("watch: the stream carries something that is no event") from None
    if kind == "ERROR":
        raise api_error(item, code=int(item.get("code") or 500), call="watch")
    return Change(type=ChangeType(kind), object=item)


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Lines of any length: an object may have a mebibyte and more, which the reader's own readline refuses. A line that
    the end of the stream cuts off is dropped: its change comes again after the reconnection."""
    pieces: list[bytes] = []
    async for chunk in content.iter_any():
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            yield b"".join((*pieces, line))
            pieces.clear()
        if rest:
            pieces.append(rest)
