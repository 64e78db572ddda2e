"""The task of the tiny examples: name the largest of three digits."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = dict[str, str]


def largest_digit(*, digits: int, seed: int) -> list[Row]:
    """All prompts from digits below `digits`, in an order that follows from the seed."""
    rows = [
        {"prompt": ",".join(map(str, drawn)) + ">", "answer": str(max(drawn))}
        for drawn in itertools.product(range(digits), repeat=3)
    ]
    random.Random(seed).shuffle(rows)  # noqa: S311 - no secret
    return rows


def write_rows(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
