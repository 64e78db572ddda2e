"""Tells the dataflow's own records from whatever else is in the ledger's stream.

Each record carries a code that only the job's dataflow can make, over its content and its place in the stream. What has
none, or a wrong one, was written by something else and counts for nothing, however much it looks like a record; one
that was copied to another place has a wrong one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

HEADER = "Trimtab-Author"
_MIN_CHARACTERS = 32


class JournalKey:
    """A secret of the job's dataflow."""

    def __init__(self, text: str) -> None:
        if len(text) < _MIN_CHARACTERS:
            raise ValueError(f"a journal's key has at least {_MIN_CHARACTERS} characters")
        self._key = text.encode()

    def code(self, payload: bytes, *, stream: str, sequence: int) -> str:
        place = f"{stream}\n{sequence}\n".encode()
        return hmac.new(self._key, place + payload, hashlib.sha256).hexdigest()

    def made(self, payload: bytes, headers: Mapping[str, str], *, stream: str, sequence: int) -> bool:
        """Whether the message at this place of the stream is the dataflow's own."""
        found = headers.get(HEADER, "").encode(errors="replace")
        return hmac.compare_digest(found, self.code(payload, stream=stream, sequence=sequence).encode())

    def __repr__(self) -> str:
        return "JournalKey(***)"
