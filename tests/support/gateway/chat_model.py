"""A small model with a real chat template that says anything, and comes to an end."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.gateway.tokenizers import end_of_turn, pretrained

FAMILY = "qwen2.5"


def write_model(folder: Path, *, seed: int) -> None:
    """Of random weights, with its tokenizer."""
    tokenizer = pretrained(FAMILY)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end_of_turn(FAMILY),
    )
    model = LlamaForCausalLM(config)
    _let_end(model, end_of_turn(FAMILY), every=40)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _let_end(model: LlamaForCausalLM, end: int, *, every: int) -> None:
    """One token in so many is the end of a turn: some libraries take an answer that was cut for an error. The first
    feature is the same everywhere, so that its weight in the last layer is a bias.
    """
    constant = math.sqrt(model.config.hidden_size)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[end, 0] = math.log(model.config.vocab_size / every) / constant
