"""Rows of a conversation as a job has them, and the tokenizer that they were made with: a word or a half of a character
for a token, terminal escapes among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.support.fabric.wire_specimens import trajectory
from trimtab.fabric.wire.spans import Producer, Span
from trimtab.fabric.wire.trajectory import Trajectory

ESCAPE = "\x1b]0;owned\x07"
WORDS = ("hello", " there", "\n", " four", "é", ESCAPE, " \u202egnorw", "<0xC3>", "<0xA9>")
MARKS = ("<|end|>", "<|user|>")
Said = tuple[Producer, str | None, int | None]
"""Who, in words with `~` between tokens, and by which version."""

CONVERSATION: tuple[Said, ...] = (
    (Producer.PROMPT, "<|user|>~hello~ there~<|end|>", None),
    (Producer.MODEL, " four~<|end|>", 7),
    (Producer.ENVIRONMENT, "<|user|>~\n~hello~<|end|>", None),
    (Producer.MODEL, "hello~<0xC3>~<0xA9>", 8),
    (Producer.MODEL, " four~<|end|>", 9),
)


def make_tokenizer(folder: Path) -> None:
    vocabulary = {word: number for number, word in enumerate((*WORDS, "?"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(folder)


def ids_of(words: str) -> list[int]:
    return [(*WORDS, "?", *MARKS).index(word) for word in words.split("~")]


def conversation(said: Sequence[Said] = CONVERSATION, **changes: Any) -> Trajectory:
    ids = [ids_of(words or "") for _, words, _ in said]
    trained = sum(len(own) for own, (producer, _, _) in zip(ids, said, strict=True) if producer is Producer.MODEL)
    fields: dict[str, Any] = {
        "token_ids": np.array([token for own in ids for token in own], dtype=np.int32),
        "logprobs": np.array([-0.01 - 0.5 * number for number in range(trained)], dtype=np.float32),
        "spans": tuple(
            Span(len(own), producer, version) for own, (producer, _, version) in zip(ids, said, strict=True)
        ),
        "turns": 2,
    }
    return trajectory(**fields | changes)
