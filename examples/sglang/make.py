"""Makes what the SGLang example needs beside its manifest: SmolLM2-135M, prompts, and an environment with SGLang."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from examples.pretrained_model import load
from examples.sglang.environment import sglang_interpreter
from examples.tiny_model import let_others_read

_END, _START = "<|im_end|>", "<|im_start|>"
_SHOWN = "1+1=2\n2+5=7\n3+3=6\n"


def make_model(folder: Path) -> None:
    """In bf16, as checkpoints of this size come."""
    smollm2 = load()
    smollm2.model.to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=smollm2.tokenizer,
        bos_token=_START,
        eos_token=_END,
        pad_token=_END,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    let_others_read(folder)


def make_prompts(path: Path) -> None:
    """Sums of one digit, so that the first token says it all; the model is right now and then."""
    with path.open("w") as file:
        for one, two in itertools.product(range(1, 9), repeat=2):
            if one + two < 10:
                prompt = f"{_SHOWN}{one}+{two}="
                file.write(json.dumps({"prompt": prompt, "answer": str(one + two)}) + "\n")


def link_environment(link: Path) -> None:
    """A folder beside the manifest, which names its interpreter by a relative path."""
    link.unlink(missing_ok=True)
    link.symlink_to(sglang_interpreter().parent.parent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    make_model(arguments.folder / "model")
    make_prompts(arguments.folder / "prompts.jsonl")
    link_environment(arguments.folder / "environment")


if __name__ == "__main__":
    main()
