"""Fills the places of a prompt text. `str.format` would stumble over LaTeX, and fill what it has filled."""

from __future__ import annotations

import re


def check_places(text: str, *, name: str, places: tuple[str, ...]) -> str:
    """The text, if it has all the places it needs."""
    missing = [place for place in places if f"{{{place}}}" not in text]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(f'{{{place}}}' for place in missing)}")
    return text


def filled(text: str, **places: str) -> str:
    """Each `{place}` replaced by its words, in one pass: braces within the words stay as they are."""
    pattern = "|".join(map(re.escape, places))
    return re.sub(rf"\{{({pattern})\}}", lambda match: places[match.group(1)], text)
