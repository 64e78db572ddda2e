"""Makes what solver and verifier learn from: two tiny Llamas with random weights, prompts, and held-out ones."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.largest_digit import largest_digit, write_rows
from examples.tiny_model import make_model, make_tokenizer

CHARACTERS = "01234,>+-? "
_HELD_OUT = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for number, policy in enumerate(("solver", "verifier")):
        model = arguments.folder / f"{policy}-model"
        make_tokenizer(model, characters=CHARACTERS)
        make_model(model, characters=CHARACTERS, seed=2 * arguments.seed + number)
    rows = largest_digit(digits=5, seed=arguments.seed)
    write_rows(rows[:_HELD_OUT], arguments.folder / "held-out.jsonl")
    write_rows(rows[_HELD_OUT:], arguments.folder / "train.jsonl")


if __name__ == "__main__":
    main()
