"""Makes what the example needs beside its manifests: the pretrained SmolLM2-135M, and chains of sums."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.largest_digit import write_rows
from examples.reasoning.chains import chains
from examples.sglang.make import make_model

STEPS = 6
"""Of a chain. The first is part of the prompt; the others are 35 to 45 tokens."""
_HELD_OUT = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0, help="of the chains; the model is always the same")
    arguments = parser.parse_args()
    make_model(arguments.folder / "model")
    rows = chains(steps=STEPS, seed=arguments.seed)
    write_rows(rows[:_HELD_OUT], arguments.folder / "held-out.jsonl")
    write_rows(rows[_HELD_OUT:], arguments.folder / "train.jsonl")


if __name__ == "__main__":
    main()
