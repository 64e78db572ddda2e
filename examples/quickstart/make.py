"""Makes what the quickstart learns from: a tiny Llama with random weights, a character tokenizer, and its prompts.

The task is to name the largest of three digits. Everything follows from the seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "0123456789,>=? "


def make_tokenizer(folder: Path) -> None:
    """One token per character, and nothing else: no end token, as answers have a fixed length."""
    tokenizer = Tokenizer(models.WordLevel({character: number for number, character in enumerate(CHARACTERS)}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False).save_pretrained(folder)


def make_model(folder: Path, *, seed: int) -> None:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def make_prompts(path: Path) -> None:
    with path.open("w") as file:
        for digits in itertools.product(range(10), repeat=3):
            prompt = ",".join(map(str, digits)) + ">"
            file.write(json.dumps({"prompt": prompt, "answer": str(max(digits))}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_tokenizer(arguments.folder / "model")
    make_model(arguments.folder / "model", seed=arguments.seed)
    make_prompts(arguments.folder / "prompts.jsonl")


if __name__ == "__main__":
    main()
