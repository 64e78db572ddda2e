"""Prompts to begin with, for each template: enough to see that a job runs, to be replaced by one's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Row = dict[str, object]


@dataclass(frozen=True)
class Rows:
    """In an order that follows from the seed."""

    prompts: list[Row]
    corpus: list[Row] = field(default_factory=list)


def _shuffled(rows: list[Row], seed: int) -> list[Row]:
    random.Random(seed).shuffle(rows)  # noqa: S311 - no secret
    return rows


def _sums(seed: int) -> Rows:
    rows: list[Row] = [
        {"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(10, 100, 5) for b in range(3, 99, 7)
    ]
    return Rows(_shuffled(rows, seed))


def _programs(seed: int) -> Rows:
    rows: list[Row] = []
    for symbol, what in (("+", "sum"), ("-", "difference"), ("*", "product")):
        for factor in range(1, 41):
            reference = f"def f(a, b):\n    return {factor} * (a {symbol} b)"
            inputs = [[2, 3], [7, 5], [0, 4]]
            apply: Callable[[int, int], int] = {
                "+": lambda a, b: a + b,
                "-": lambda a, b: a - b,
                "*": lambda a, b: a * b,
            }[symbol]
            outputs = [factor * apply(a, b) for a, b in inputs]
            rows.append(
                {
                    "prompt": f"Write a Python function f(a, b): {factor} times the {what} of a and b.",
                    "tests": {"inputs": inputs, "outputs": outputs, "fn_name": "f"},
                    "reference": reference,
                }
            )
    return Rows(_shuffled(rows, seed))


def _people(seed: int) -> Rows:
    towns = ("Bergen", "Lagos", "Lima", "Osaka", "Quito", "Turin", "Utrecht", "Zagreb")
    firsts = ("Ada", "Bela", "Cora", "Dino", "Emil", "Fay", "Gwen", "Hugo", "Ines", "Jan")
    lasts = ("Abel", "Berg", "Costa", "Dahl", "Engel", "Ferro", "Gray", "Holm", "Ito", "Jung")
    chance = random.Random(seed)  # noqa: S311 - no secret
    homes = {f"{first} {last}": chance.choice(towns) for first in firsts for last in lasts}
    return Rows(
        _shuffled([{"prompt": f"Where does {name} live?", "answer": town} for name, town in homes.items()], seed),
        [{"title": name, "text": f"{name} lives in {town}."} for name, town in homes.items()],
    )


ROWS: dict[str, Callable[[int], Rows]] = {
    "single-turn": _sums,
    "tool-agent": _sums,
    "solver-verifier": _sums,
    "external-agent": _sums,
    "code-tests": _programs,
    "search": _people,
}
