"""Finds the program in what a policy said."""

from __future__ import annotations

import re

_FENCED = re.compile(r"^[ \t]*(```+|~~~+)[^\n`]*\n(.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)


def program_in(said: str) -> str:
    """The last fenced block; where there is none, all of it."""
    blocks = [match.group(2) for match in _FENCED.finditer(said)]
    return blocks[-1] if blocks else said
