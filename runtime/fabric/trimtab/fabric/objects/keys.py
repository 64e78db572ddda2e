"""Object keys every S3 store agrees on. Some fold `a//b` and `a/./b` together, some keep them apart, some refuse them;
a key must mean one object everywhere, and must not climb out of the configured prefix.
"""

from __future__ import annotations

from trimtab.fabric.objects.errors import InvalidKey

MAX_KEY_BYTES = 1024


def checked_key(key: str) -> str:
    reason = _objection(key)
    if reason:
        raise InvalidKey(f"object key {key[:120]!r} {reason}")
    return key


def full_key(prefix: str, key: str) -> str:
    """The key as the store sees it: below the configured prefix, which may end in a slash or not."""
    stem = prefix.strip("/")
    return checked_key(f"{stem}/{checked_key(key)}" if stem else key)


def relative_key(prefix: str, key: str) -> str:
    stem = prefix.strip("/")
    return key.removeprefix(f"{stem}/") if stem else key


def _objection(key: str) -> str | None:
    if not key:
        return "is empty"
    if not key.isprintable():
        return "has control or unprintable characters"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > MAX_KEY_BYTES:
        return f"is longer than {MAX_KEY_BYTES} bytes"
    segments = key.split("/")
    if "" in segments:
        return "begins or ends with a slash, or has two in a row"
    if "." in segments or ".." in segments:
        return "has a '.' or '..' segment"
    return None
