"""One request inside the built-in engine: what was asked, what has been sampled so far, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from tokenizers import Tokenizer

_CUT_CHARACTER_TOKENS = 4
"""A character may take so many tokens of a byte each, and the first few of those looked at may be the end of one."""
FinishType = Literal["stop", "length", "abort"]


class TextCodec:
    """The tokenizer of a checkpoint. Without one the engine takes and gives token ids alone."""

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


class SamplingParams(BaseModel):
    """The subset of SGLang's sampling parameters that the built-in engine honours; others are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_new_tokens: int = Field(default=128, ge=0)
    """0 is for scoring what is given: nothing is sampled."""
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling_seed: int | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, stop: object) -> object:
        return (stop,) if isinstance(stop, str) else stop


@dataclass(kw_only=True)
class VersionSpan:
    """Output tokens `start` to `end` were sampled from the weights of this version."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class SampledToken:
    token: int
    logprob: float
    version: str


@dataclass(kw_only=True, eq=False)
class Generation:
    """Mutable progress of one request; owned by the model thread once it is queued, until `done`."""

    request_id: str
    input_ids: list[int]
    params: SamplingParams
    seed: int
    stop_strings: StopStrings | None = None
    on_token: Callable[[SampledToken], None] | None = None
    """Is called by the model thread, for a client that wants to see every token when it is there. Not for the one that
    ends it: who hears of that must hear of the end too.
    """
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    finish: FinishType | None = None
    matched: int | str | None = None
    cached_tokens: int = 0
    """Tokens of the prompt that were not computed again."""
    retractions: int = 0
    prefix_epoch: int = -1
    """In which its keys and values were begun."""
    weight_version: str = ""
    """Of the weights that were served when it ended."""
    done: Future[None] = field(default_factory=Future)
    began: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None

    @property
    def first_token_s(self) -> float | None:
        """How long it took until the first token; None before it."""
        return None if self.first_token_at is None else self.first_token_at - self.began

    @property
    def tokens(self) -> list[int]:
        return self.input_ids + self.output_ids

    @property
    def length(self) -> int:
        return len(self.input_ids) + len(self.output_ids)

    def append(self, token: int, logprob: float, *, version: str, eos_ids: frozenset[int]) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()
        self.output_ids.append(token)
        self.logprobs.append(logprob)
        end = len(self.output_ids)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1].end = end
        else:
            self.spans.append(VersionSpan(version=version, start=end - 1, end=end))
        matched = None if self.stop_strings is None else self.stop_strings.found_at_end(self.output_ids)
        if token in self.params.stop_token_ids or (token in eos_ids and not self.params.ignore_eos):
            self.finish, self.matched = "stop", token
        elif matched is not None:
            self.finish, self.matched = "stop", matched
        elif end >= self.params.max_new_tokens:
            self.finish = "length"
        if self.on_token is not None and self.finish is None:
            self.on_token(SampledToken(token=token, logprob=logprob, version=version))
