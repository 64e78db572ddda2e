"""What both contenders generate: prompts of plain English and how many tokens each is to be continued with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

_PROMPT_TOKENS = 32
_SUBJECTS = ("The harbour", "My grandmother", "A young engineer", "The old train", "Our small town", "The committee")
_VERBS = ("was quiet", "began to sing", "had never seen", "remembered", "walked slowly past", "could not explain")
_OBJECTS = ("the morning market", "a letter from Paris", "two broken clocks", "the winter of 1963", "every street lamp")


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt, and the number of tokens to sample after it."""

    prompt: tuple[int, ...]
    new_tokens: int


def uniform_requests(tokenizer: Tokenizer, *, count: int, new_tokens: int, seed: int) -> list[Request]:
    """All of one length: a static batch wastes nothing on them."""
    chance = random.Random(seed)
    return [Request(prompt=_prompt(tokenizer, chance), new_tokens=new_tokens) for _ in range(count)]


def long_tailed_requests(tokenizer: Tokenizer, *, count: int, median: int, longest: int, seed: int) -> list[Request]:
    """Lengths as reasoning models have them: log-normal with sigma 1.2, the mean twice the median."""
    chance = random.Random(seed)
    return [
        Request(
            prompt=_prompt(tokenizer, chance),
            new_tokens=max(1, min(longest, round(median * chance.lognormvariate(0.0, 1.2)))),
        )
        for _ in range(count)
    ]


def total_tokens(requests: Sequence[Request]) -> int:
    return sum(request.new_tokens for request in requests)


def _prompt(tokenizer: Tokenizer, chance: random.Random) -> tuple[int, ...]:
    text = ""
    while len(ids := tokenizer.encode(text).ids) < _PROMPT_TOKENS:
        text += f"{chance.choice(_SUBJECTS)} {chance.choice(_VERBS)} {chance.choice(_OBJECTS)}. "
    return tuple(ids[:_PROMPT_TOKENS])
