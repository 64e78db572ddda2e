"""Models that may speak at length, in characters, with a chat template: agents can have long streams of them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from examples.tiny_model import make_tokenizer

CHARACTERS = "0123456789,>=?abcdefghijklmnopqrstuvwxyz "
TEMPLATE = "{% for message in messages %}{{ message.content }}>{% endfor %}"


def make_talkative_models(folder: Path, *, seeds: int = 3) -> None:
    """Folders `0`, `1`, …: the same model with the weights of as many seeds."""
    for seed in range(seeds):
        _make(folder / str(seed), seed=seed)


def _make(folder: Path, *, seed: int) -> None:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer(folder, characters=CHARACTERS)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
