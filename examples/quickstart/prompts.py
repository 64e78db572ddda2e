"""Makes what the quickstart asks: of the 1,000 questions there are, 100 are held out and never trained on."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.largest_digit import largest_digit, write_rows

_HELD_OUT = 100


def make_prompts(folder: Path) -> None:
    """`prompts.jsonl` and `held_out.jsonl`, which share no question."""
    rows = largest_digit(digits=10, seed=0)
    write_rows(rows[:_HELD_OUT], folder / "held_out.jsonl")
    write_rows(rows[_HELD_OUT:], folder / "prompts.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    make_prompts(parser.parse_args().folder)


if __name__ == "__main__":
    main()
