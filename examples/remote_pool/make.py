"""Makes what both clusters' pods read: a tiny Llama with random weights, and prompts."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.largest_digit import largest_digit, write_rows
from examples.tiny_model import make_model, make_tokenizer

CHARACTERS = "0123456789,> "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_tokenizer(arguments.folder / "model", characters=CHARACTERS)
    make_model(arguments.folder / "model", characters=CHARACTERS, seed=arguments.seed)
    write_rows(largest_digit(digits=10, seed=arguments.seed), arguments.folder / "prompts.jsonl")


if __name__ == "__main__":
    main()
