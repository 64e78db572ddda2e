"""Text that strangers wrote. Names and errors come from pods that may be hostile, and reasons from a model: all of it
is made short and printable before it is shown, and names are looked up again by what was shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

MAX_NAME = 128
MAX_TEXT = 300
_NUMBER = re.compile(r"[0-9]{1,9}")


def printable(text: str, *, limit: int) -> str:
    """Without control, formatting and surrogate characters, on one line, and cut to the limit."""
    kept = "".join(char if char.isprintable() else " " if char.isspace() else "" for char in text[: 4 * limit]).strip()
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def whole_number(text: str | None) -> int | None:
    """In an annotation or a label. None for what is no number of a few digits: `²` is a digit too, and a long one costs
    its square."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


@dataclass(frozen=True)
class Names:
    """Names as they are shown, and back. Two that look alike when shown can be read but not chosen."""

    _chosen: dict[str, str]

    @staticmethod
    def of(names: Iterable[str]) -> Names:
        shown = {name: shown_name(name) for name in names}
        seen = Counter(shown.values())
        return Names({text: name for name, text in shown.items() if text and seen[text] == 1})

    def find(self, shown: str) -> str | None:
        return self._chosen.get(shown)


def shown_name(name: str) -> str:
    return printable(name, limit=MAX_NAME)
