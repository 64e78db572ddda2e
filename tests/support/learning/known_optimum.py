"""Tasks so small that everything about them can be counted: all answers, what each is worth, and the best policy.

An expected reward here is a sum over every possible answer and not a mean over samples, so a curve has no noise but
that of the training itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

END = 0
VOCABULARY = 8
_PROMPT_TOKENS = 2
_BISECTIONS = 200

Answer = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class KnownTask:
    """An answer ends with `END` or with its `longest`-th token. What is not in a prompt's table is worth nothing."""

    prompts: tuple[Answer, ...]
    rewards: tuple[Mapping[Answer, float], ...]
    """For each prompt."""
    longest: int

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        return tuple(_continuations((), self.longest))

    @cached_property
    def reward_table(self) -> torch.Tensor:
        """(prompts, answers), in float64."""
        rows = [[worth.get(answer, 0.0) for answer in self.answers] for worth in self.rewards]
        return torch.tensor(rows, dtype=torch.float64)

    @property
    def best(self) -> float:
        """The expected reward of a policy that always gives the best answer."""
        return float(self.reward_table.max(dim=1).values.mean())

    def expected_reward(self, probabilities: torch.Tensor) -> float:
        return float((probabilities * self.reward_table).sum(dim=1).mean())


def words(*, seed: int, prompts: int = 4) -> KnownTask:
    """A secret word of two letters for each prompt, to be given and ended: a third of the reward for each of the
    letters in its place, and for the end in its own. Answers have one to three tokens, so averages over tokens, answers
    and places differ.
    """
    chance = np.random.default_rng(seed)
    asked = _prompts(chance, prompts)
    worth = []
    for _ in asked:
        secret = tuple(chance.integers(1, VOCABULARY, 2).tolist())
        worth.append({answer: _likeness(answer, secret) for answer in _continuations((), 3)})
    return KnownTask(prompts=asked, rewards=tuple(worth), longest=3)


def lottery(*, seed: int, prompts: int = 4) -> KnownTask:
    """One token for an answer, each worth something random between 0 and 1."""
    chance = np.random.default_rng(seed)
    asked = _prompts(chance, prompts)
    worth: list[dict[Answer, float]] = [
        {(token,): float(chance.random()) for token in range(VOCABULARY)} for _ in asked
    ]
    return KnownTask(prompts=asked, rewards=tuple(worth), longest=1)


def make_model(folder: Path, *, seed: int, spread: float = 0.1) -> None:
    """A Llama of some thousand weights. With a larger `spread` it begins with decided opinions."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
        initializer_range=spread,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@torch.no_grad()
def next_token_logits(model: LlamaForCausalLM, task: KnownTask) -> list[torch.Tensor]:
    """For each place of an answer, (prompts, all texts that may stand before it, tokens), texts as numbers in order.

    One pass over the longest texts serves all places, as what is before a place does not see what is after it.
    """
    texts = list(product(range(VOCABULARY), repeat=task.longest - 1))
    ids = torch.tensor([[*prompt, *text] for prompt in task.prompts for text in texts])
    logits = model(input_ids=ids, use_cache=False).logits.view(len(task.prompts), len(texts), ids.shape[1], -1)
    first = _PROMPT_TOKENS - 1
    return [logits[:, :: VOCABULARY ** (task.longest - 1 - place), first + place] for place in range(task.longest)]


def answer_probabilities(model: LlamaForCausalLM, task: KnownTask) -> torch.Tensor:
    """(prompts, answers) in float64, in the order of `task.answers`."""
    logprobs = torch.zeros(len(task.prompts), 1, dtype=torch.float64)
    by_length = []
    for logits in next_token_logits(model, task):
        logprobs = (logprobs[:, :, None] + torch.log_softmax(logits.double(), dim=-1)).flatten(start_dim=1)
        by_length.append(logprobs)
    return torch.stack([by_length[len(answer) - 1][:, _number(answer)] for answer in task.answers], dim=1).exp()


def gibbs(reference: torch.Tensor, rewards: torch.Tensor, *, coefficient: float) -> torch.Tensor:
    """The policy with the largest reward less `coefficient` times its divergence from the reference."""
    tilted = torch.log(reference) + rewards / coefficient
    return torch.softmax(tilted, dim=-1)


def mode_covering(reference: torch.Tensor, rewards: torch.Tensor, *, coefficient: float) -> torch.Tensor:
    """The policy with the largest reward less `coefficient` times the divergence of the reference from it.

    Where the derivatives by all probabilities are equal, p = coefficient * reference / (level - reward), with the one
    level above all rewards that makes them sum up to one. It lies between the best reward and `coefficient` above it.
    """
    low = rewards.max(dim=-1, keepdim=True).values
    high = low + coefficient
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_much = (coefficient * reference / (middle - rewards)).sum(dim=-1, keepdim=True) > 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    return coefficient * reference / (high - rewards)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Total variation, of the prompt where it is largest."""
    return float((one - other).abs().sum(dim=-1).max() / 2)


def _prompts(chance: np.random.Generator, count: int) -> tuple[Answer, ...]:
    numbers = chance.permutation(VOCABULARY**_PROMPT_TOKENS)[:count].tolist()
    return tuple(divmod(number, VOCABULARY) for number in numbers)


def _number(text: Answer) -> int:
    return reduce(lambda number, token: number * VOCABULARY + token, text, 0)


def _continuations(prefix: Answer, longest: int) -> Iterator[Answer]:
    for token in range(VOCABULARY):
        answer = (*prefix, token)
        if token == END or len(answer) == longest:
            yield answer
        else:
            yield from _continuations(answer, longest)


def _likeness(answer: Answer, secret: Answer) -> float:
    """Of the three places of the secret word and its end, the share that is right."""
    wanted = (*secret, END)
    return sum(given == expected for given, expected in zip(answer, wanted, strict=False)) / len(wanted)
