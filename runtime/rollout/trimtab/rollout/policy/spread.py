"""Spreads the requests of a policy over its engines. What shares a beginning goes where that was computed before,
unless the engine has more to do than others; an engine that is lost or held up is passed over while another is not.
"""

from __future__ import annotations

from collections.abc import Sequence

_BLOCK = 32
"""Tokens that are compared at once. Shorter beginnings are not worth a detour."""
_MOST_BLOCKS = 1 << 16
_PATIENCE = 4
"""Requests by which an engine may be ahead of the idlest one and still be given what it knows the beginning of."""


def chosen(*, home: int | None, loads: Sequence[int], sent: Sequence[int], usable: Sequence[bool]) -> int:
    """The engine for one more request. `home` is the one that has its beginning, `loads` are requests under way at
    each, `sent` those ever given to it, which decides between equals. With none usable, all are: they may come back.
    """
    places = [place for place, is_usable in enumerate(usable) if is_usable] or list(range(len(loads)))
    idlest = min(places, key=lambda place: (loads[place], sent[place], place))
    if home in places and loads[home] <= loads[idlest] + _PATIENCE:
        return home
    return idlest


class PrefixHomes:
    """Which engine last computed the beginnings of recent requests: an estimate of what their caches hold."""

    def __init__(self, *, most_blocks: int = _MOST_BLOCKS) -> None:
        self._most_blocks = most_blocks
        self._homes: dict[int, int] = {}
        """By a hash of everything up to the end of a block; the latest used last."""

    def home(self, tokens: Sequence[int]) -> int | None:
        """Where the longest known beginning is; None where there is none."""
        found = None
        for key in _blocks(tokens):
            if key not in self._homes:
                break
            found = self._homes[key]
        return found

    def note(self, tokens: Sequence[int], engine: int) -> None:
        for key in _blocks(tokens):
            self._homes.pop(key, None)
            self._homes[key] = engine
        while len(self._homes) > self._most_blocks:
            del self._homes[next(iter(self._homes))]


def _blocks(tokens: Sequence[int]) -> list[int]:
    keys: list[int] = []
    key = 0
    for end in range(_BLOCK, len(tokens) + 1, _BLOCK):
        key = hash((key, *tokens[end - _BLOCK : end]))
        keys.append(key)
    return keys
