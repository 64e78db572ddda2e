"""Makes what the example needs beside its manifests: the pretrained SmolLM2-135M with its chat template, and chains of
sums and differences, some of them held out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from examples.reasoning.chains import chains
from examples.sglang.make import make_model

STEPS = 5
"""Of a chain: 30 characters of working and as many tokens, and one for the end."""
_TRAINED = 2000
_HELD_OUT = 24
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""SmolLM2's own, without the system prompt that it adds where there is none."""


def make_prompts(folder: Path, *, steps: int, trained: int, held_out: int, seed: int) -> None:
    rows = [made.row for made in chains(trained + held_out, steps=steps, seed=seed)]
    for name, part in (("held-out", rows[:held_out]), ("train", rows[held_out:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def add_template(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0, help="of the chains; the model is always the same")
    arguments = parser.parse_args()
    make_model(arguments.folder / "model")
    add_template(arguments.folder / "model")
    make_prompts(arguments.folder, steps=STEPS, trained=_TRAINED, held_out=_HELD_OUT, seed=arguments.seed)


if __name__ == "__main__":
    main()
