"""Tokenizers with the chat templates of known families. A text can be spelt in many ways: there is a token for every
character, and one for every pair of letters, so that what is decoded and encoded again is seldom what was sampled.
"""
# ruff: noqa: RUF001 - DeepSeek's marks are written with these letters

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from trimtab.rollout.tokenizer import Tokenizer

FOLDER = Path(__file__).parent / "templates"

MARKS: dict[str, tuple[str, ...]] = {
    "smollm2": ("<|im_end|>", "<|im_start|>"),
    "qwen2.5": ("<|im_end|>", "<|im_start|>"),
    "qwen3": ("<|im_end|>", "<|im_start|>"),
    "llama3": ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    "mistral": (
        *("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    "deepseek": (
        *("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        *("<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
        *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ),
    "gemma": ("<end_of_turn>", "<bos>", "<start_of_turn>"),
    "phi": ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>"),
    "glm": ("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "[gMASK]", "<sop>"),
    "gpt-oss": ("<|return|>", "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|call|>", "<|constrain|>"),
}
"""Special tokens by family. The first is what the model ends its turn with."""

FAMILIES = tuple(MARKS)


@cache
def pretrained(family: str) -> PreTrainedTokenizerFast:
    pairs = [(one, two) for one in string.ascii_lowercase for two in string.ascii_lowercase]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces = [*sorted(alphabet), *("".join(pair) for pair in pairs)]
    fast = FastTokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=pairs))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, clean_up_tokenization_spaces=False)
    end, *others = MARKS[family]
    special: dict[str, str | AddedToken | Sequence[str | AddedToken]] = {
        "eos_token": end,
        "additional_special_tokens": [AddedToken(mark, special=True) for mark in others],
    }
    tokenizer.add_special_tokens(special)
    tokenizer.chat_template = (FOLDER / f"{family}.jinja").read_text(encoding="utf-8")
    return tokenizer


@cache
def tokenizer_of(family: str) -> Tokenizer:
    return Tokenizer.of(pretrained(family))


def end_of_turn(family: str) -> int:
    """The token that the model ends its turn with."""
    found = pretrained(family).convert_tokens_to_ids(MARKS[family][0])
    assert isinstance(found, int)
    return found
