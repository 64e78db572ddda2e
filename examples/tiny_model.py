"""Tiny Llamas with random weights and a token for every character: examples that learn something from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def make_tokenizer(folder: Path, *, characters: str) -> None:
    """One token per character, and nothing else: no end token, as answers have a fixed length. Others are the last."""
    vocabulary = {character: number for number, character in enumerate(characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, characters[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False).save_pretrained(folder)


def make_model(
    folder: Path,
    *,
    characters: Sequence[str],
    seed: int,
    width: int = 64,
    layers: int = 2,
    end: int | None = None,
    context: int = 64,
) -> None:
    """Two layers of 64 learn in a minute or two what larger ones learn in three. `end` is the token that ends an
    answer, where one does.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(characters),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    let_others_read(folder)


def let_others_read(folder: Path) -> None:
    """Pods run as a user of their own; safetensors writes weights that only the one who made them may read."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


WORD = r"</?[a-z]+>|[A-Za-z]+|[^A-Za-z\s]"
"""A mark, a word, or a single character that is neither a letter nor space."""


def make_word_tokenizer(folder: Path, *, words: Sequence[str]) -> None:
    """One token per word, as WORD finds them; written out, there is a space between any two. Others are the last."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, words[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(WORD), behavior="isolated")]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False).save_pretrained(folder)
