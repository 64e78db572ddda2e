"""A model of 1.5 billion random weights in Qwen3's shape, and a tokenizer with a word for every token: speeds and sizes
are those of a real one, and no hub is needed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config


def qwen3(*, layers: int) -> Qwen3Config:
    """As wide as the model of 1.7 billion weights, which has 28 layers."""
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=2_048,
        intermediate_size=6_144,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )


SHAPE = qwen3(layers=24)


def write_model(folder: Path, *, seed: int) -> int:
    """With its tokenizer. Gives the number of its weights."""
    _tokenizer().save_pretrained(folder)
    return write_weights(folder, SHAPE, seed=seed)


def write_weights(folder: Path, shape: Qwen3Config, *, seed: int) -> int:
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    weights: int = sum(parameter.numel() for parameter in model.parameters())
    del model
    torch.cuda.empty_cache()
    return weights


def _tokenizer() -> PreTrainedTokenizerFast:
    """Words that begin with a, and as many that begin with b."""
    words = {f"{'ab'[number % 2]}{number}": number for number in range(SHAPE.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, "a0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Metaspace(replacement="\N{LOWER ONE EIGHTH BLOCK}")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)  # type: ignore[no-untyped-call]


def random_prompt(chance: random.Random, *, tokens: int) -> list[int]:
    return [chance.randrange(SHAPE.vocab_size) for _ in range(tokens)]


def write_prompts(path: Path, *, count: int, tokens: int, seed: int) -> None:
    chance = random.Random(seed)
    rows = (
        {"prompt": " ".join(f"{'ab'[n % 2]}{n}" for n in random_prompt(chance, tokens=tokens))} for _ in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
