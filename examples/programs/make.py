"""Makes what solver, selector and test writer learn from: tiny Llamas with random weights, and functions to find out.

A problem shows what a function makes of two numbers (`2,3=6>`), and the program is the operator between them. The
examples tell the operators apart, and so do the hidden tests.
"""

from __future__ import annotations

import argparse
import json
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.tiny_model import make_model, make_tokenizer

CHARACTERS = "0123456789,=>+*|&^?! "
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "*": operator.mul,
    "&": operator.and_,
}
SHOWN = ((2, 3), (3, 2), (2, 6), (6, 2), (3, 5), (5, 3), (3, 6), (6, 3))
HIDDEN = ((7, 5), (5, 6))


def problems(*, seed: int) -> list[dict[str, Any]]:
    """All of them, in an order that follows from the seed."""
    rows = [
        {
            "prompt": f"{a},{b}={apply(a, b)}>",
            "tests": {
                "inputs": [list(pair) for pair in HIDDEN],
                "outputs": [apply(*pair) for pair in HIDDEN],
                "fn_name": "f",
            },
            "reference": f"f = lambda a, b: a{symbol}b",
        }
        for symbol, apply in OPERATORS.items()
        for a, b in SHOWN
    ]
    random.Random(seed).shuffle(rows)  # noqa: S311 - no secret
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for number, policy in enumerate(("solver", "selector", "tester")):
        model = arguments.folder / f"{policy}-model"
        make_tokenizer(model, characters=CHARACTERS)
        make_model(model, characters=CHARACTERS, seed=3 * arguments.seed + number)
    lines = [json.dumps(row) + "\n" for row in problems(seed=arguments.seed)]
    (arguments.folder / "train.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
