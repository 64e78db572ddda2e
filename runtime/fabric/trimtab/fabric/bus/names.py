"""Names that NATS accepts made out of names that people choose, so that two different ones never meet.

The escaped alphabet is [A-Za-z0-9_-]: valid in a subject token, a stream name, a bucket name and a key alike, and as a
folder name on the server's disk.
"""

from __future__ import annotations

import hashlib

from trimtab.fabric.bus.errors import InvalidName

MAX_TOKEN_CHARS = 63
SEPARATOR = "__"

_KEPT = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
_HASH_CHARS = 20


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
