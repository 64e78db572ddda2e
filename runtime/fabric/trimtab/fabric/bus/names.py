"""Names that NATS accepts made out of names that people choose, so that two different ones never meet, and what may
travel in a subject or a header.

The escaped alphabet is [A-Za-z0-9_-]: valid in a subject token, a stream name, a bucket name and a key alike, and as a
folder name on the server's disk.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from trimtab.fabric.bus.errors import InvalidName

MAX_TOKEN_CHARS = 63
SEPARATOR = "__"
_KEPT = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
_HASH_CHARS = 20
_SUBJECT = re.compile(r"[^\s*>]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PREAMBLE = len(b"NATS/1.0\r\n\r\n")
_PER_LINE = len(b": \r\n")
MAX_SUBJECT_CHARS = 1024
Headers = dict[str, str]


def escape_token(text: str) -> str:
    """Injective: every byte outside [A-Za-z0-9-] becomes `_xx`; what grows too long keeps its start and gets a hash.

    An underscore is always followed by two hex digits, or by `h` and the hash, so `__` can separate tokens.
    """
    if not text:
        raise InvalidName("a name used as a subject token must not be empty")
    try:
        pieces = [chr(byte) if chr(byte) in _KEPT else f"_{byte:02x}" for byte in text.encode()]
    except UnicodeEncodeError:
        raise InvalidName("a name used as a subject token must be valid Unicode") from None
    escaped = "".join(pieces)
    if len(escaped) <= MAX_TOKEN_CHARS:
        return escaped
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
    room = MAX_TOKEN_CHARS - _HASH_CHARS - len("_h")
    kept = ""
    for piece in pieces:
        if len(kept) + len(piece) > room:
            break
        kept += piece
    return f"{kept}_h{digest}"


@lru_cache(maxsize=4096)
def checked_subject(subject: str) -> str:
    """A subject one can publish to: tokens without blanks or wildcards, none empty."""
    if not _SUBJECT.fullmatch(subject) or len(subject) > MAX_SUBJECT_CHARS or "" in subject.split("."):
        raise InvalidName(f"subject {subject[:80]!r} is empty, too long, or has an empty token, a blank or a wildcard")
    return subject


def checked_headers(headers: Headers) -> Headers:
    for name, value in headers.items():
        _check_header_name(name)
        if value != value.strip() or "\r" in value or "\n" in value:
            raise InvalidName(f"value of header {name!r} has a line break, or blanks at an end")
    return headers


@lru_cache(maxsize=1024)
def _check_header_name(name: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidName(f"header name {name[:80]!r} has characters outside the HTTP token set")


def encoded_size(headers: Headers) -> int:
    """Bytes the headers take on the wire; the server counts them against max_payload."""
    lines = sum(len(name) + (len(value) if value.isascii() else len(value.encode())) for name, value in headers.items())
    return _PREAMBLE + lines + _PER_LINE * len(headers)
