"""The text of tokens that come one after the other: what is given out never changes when more come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"
"""What decoders make of the first bytes of a character. It may also be what a token says."""
_MOST_HELD = 64
"""Tokens that are waited for a character's end. Models that have lost their way write bytes that are none for long."""


class LiveText:
    """Of one answer. `decode` is a tokenizer's, and need not know the beginning of a text from its middle: each token
    is decoded behind the ones before it.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._shown: list[int] = []
        """The tokens of the latest text: what comes is decoded behind these."""
        self._held: list[int] = []

    def feed(self, token_ids: Sequence[int], *, last: bool = False) -> str:
        """The text that is certain now. With `last` all of it is."""
        self._held += token_ids
        before = self._decode(self._shown)
        now = self._decode(self._shown + self._held)
        if not last and now.endswith(_UNFINISHED) and len(self._held) < _MOST_HELD:
            return ""
        if len(now) > len(before):
            # Tokens that say nothing are no context to decode others behind.
            self._shown, self._held = self._held, []
        return now[len(before) :]


class StopGuard:
    """Lets a text through up to the first of the stop texts. What may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self._stopped = False

    def feed(self, text: str, *, last: bool = False) -> str:
        if self._stopped:
            return ""
        self._held += text
        found = [at for at in map(self._held.find, self._stops) if at >= 0]
        if found:
            self._stopped = True
            return self._held[: min(found)]
        kept = 0 if last else max((_begun(self._held, stop) for stop in self._stops), default=0)
        certain, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return certain


def _begun(text: str, stop: str) -> int:
    """How many of the last characters are the beginning of the stop text."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
