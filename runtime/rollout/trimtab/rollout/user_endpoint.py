"""Endpoints that users name in a manifest: their addresses are checked, and they are believed to say anything."""

from __future__ import annotations

from urllib.parse import urlsplit

import aiohttp

_CHUNK_BYTES = 1 << 16


class AnswerTooLarge(ValueError):
    """It said more than anybody wants to keep."""


def check_url(url: str, *, name: str) -> str:
    """The address, if it is one that may stand in logs. `name` is that of the argument."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} is {url!r:.200}: an address that begins with http:// or https://")
    if parts.username or parts.password:
        raise ValueError(f"{name} has a user or a password in it, which would get into logs: leave them out")
    return url


async def read_body(response: aiohttp.ClientResponse, *, most: int) -> bytes:
    """All of it. Raises AnswerTooLarge for more than `most` bytes."""
    text = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        text += chunk
        if len(text) > most:
            raise AnswerTooLarge(f"over {most} bytes")
    return bytes(text)
