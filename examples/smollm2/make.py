"""Makes what the example needs beside its manifest: the pretrained SmolLM2-135M, and one-digit sums."""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path

from examples.sglang.make import make_model

_SHOWN = "1+1=2\n"
"""One sum with its answer before every prompt: without it the model hardly ever says a digit."""
_HELD_OUT = 15


def make_prompts(folder: Path, *, seed: int) -> None:
    """Sums below ten, so that the first token says it all; which are held out follows from the seed."""
    rows = [
        {"prompt": f"{_SHOWN}{one}+{two}=", "answer": str(one + two)}
        for one, two in itertools.product(range(10), repeat=2)
        if one + two < 10 and (one, two) != (1, 1)
    ]
    random.Random(seed).shuffle(rows)  # noqa: S311 - no secret
    for name, part in (("held-out", rows[:_HELD_OUT]), ("train", rows[_HELD_OUT:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts; the model is always the same")
    arguments = parser.parse_args()
    make_model(arguments.folder / "model")
    make_prompts(arguments.folder, seed=arguments.seed)


if __name__ == "__main__":
    main()
