"""Makes what the data algorithms are compared on: a tiny Llama with random weights, and prompts of which many teach
nothing, as in real collections. Everything follows from the seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.largest_digit import Row, largest_digit, write_rows
from examples.tiny_model import make_model, make_tokenizer

CHARACTERS = "0123456789,> "
_HELD_OUT = 150
_TRAIN = 300
"""Few, so that they come up several times: GRESO learns about a prompt from its earlier groups."""
_BROKEN_SHARE = 0.4
_BROKEN = "none"
"""An answer that no single character is: whatever is said to such a prompt is wrong."""


def with_broken_keys(rows: list[Row]) -> list[Row]:
    """The first of them, up to a share, have an answer key that no answer can meet."""
    broken = round(len(rows) * _BROKEN_SHARE)
    return [row | {"answer": _BROKEN} for row in rows[:broken]] + rows[broken:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_tokenizer(arguments.folder / "model", characters=CHARACTERS)
    make_model(arguments.folder / "model", characters=CHARACTERS, seed=arguments.seed)
    rows = largest_digit(digits=10, seed=arguments.seed)
    write_rows(rows[:_HELD_OUT], arguments.folder / "held-out.jsonl")
    write_rows(with_broken_keys(rows[_HELD_OUT:][:_TRAIN]), arguments.folder / "train.jsonl")


if __name__ == "__main__":
    main()
