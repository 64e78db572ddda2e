"""Makes what the quickstart learns from: a tiny Llama with random weights, a character tokenizer, and its prompts.

The task is to name the largest of three digits. The model's weights follow from the seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples import tiny_model
from examples.quickstart.prompts import make_prompts

CHARACTERS = "0123456789,>=? "


def make_tokenizer(folder: Path) -> None:
    tiny_model.make_tokenizer(folder, characters=CHARACTERS)


def make_model(folder: Path, *, seed: int) -> None:
    tiny_model.make_model(folder, characters=CHARACTERS, width=128, layers=4, seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_tokenizer(arguments.folder / "model")
    make_model(arguments.folder / "model", seed=arguments.seed)
    make_prompts(arguments.folder)


if __name__ == "__main__":
    main()
