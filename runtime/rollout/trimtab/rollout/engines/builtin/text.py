"""Text in and out, for checkpoints that bring a tokenizer; without one the engine takes and gives token ids alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

_CUT_CHARACTER_TOKENS = 4
"""A character may take so many tokens of a byte each, and the first few of those looked at may be the end of one."""


class TextCodec:
    """The tokenizer of a checkpoint."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def find(cls, folder: Path) -> TextCodec | None:
        path = folder / "tokenizer.json"
        return cls(Tokenizer.from_file(str(path))) if path.is_file() else None

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def piece(self, token: int) -> str:
        """One token as text, special ones by their name."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))


class StopStrings:
    """Texts that end a generation as soon as it contains one of them."""

    def __init__(self, codec: TextCodec, strings: Sequence[str]) -> None:
        self._codec = codec
        self._strings = strings
        # A token makes one character at least, once the character is whole.
        self._window = max(map(len, strings)) + _CUT_CHARACTER_TOKENS

    def found_at_end(self, output_ids: Sequence[int]) -> str | None:
        """The first of them that the last tokens complete."""
        tail = self._codec.decode(output_ids[-self._window :])
        return next((string for string in self._strings if string in tail), None)

    @staticmethod
    def trimmed(text: str, matched: str) -> str:
        return text.partition(matched)[0]
