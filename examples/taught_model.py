"""Teaches a tiny model what it knows before it learns by reward: the form of what is said, and to be right at times.

A model with random weights never comes by a whole search and an answer. One that was shown such episodes, most of them
bad, does.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from examples.tiny_model import WORD, let_others_read

Said = tuple[str, bool]
"""Words, and whether the policy says them."""
_WORD = re.compile(WORD)
_NOT_SAID = -100
"""As torch's cross entropy knows what is not to be learnt."""


def teach(
    folder: Path,
    *,
    words: Sequence[str],
    episode: Callable[[random.Random], Sequence[Said]],
    seed: int,
    steps: int,
    batch: int = 64,
) -> None:
    """Trains the model in `folder`, which has a token for each of `words`, on new episodes in each of the steps."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    vocabulary = {word: number for number, word in enumerate(words)}
    # Threads cost such a small model more than they bring.
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model.train()
    for _ in range(steps):
        tokens, labels = _batch([episode(chance) for _ in range(batch)], vocabulary)
        logits = model(input_ids=tokens).logits[:, :-1]
        # Padding comes last, where a causal model sees nothing of it.
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_NOT_SAID)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    let_others_read(folder)


def _batch(episodes: Sequence[Sequence[Said]], vocabulary: Mapping[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = []
    for episode in episodes:
        tokens: list[int] = []
        labels: list[int] = []
        for words, said in episode:
            numbers = [vocabulary[word] for word in _WORD.findall(words)]
            tokens += numbers
            labels += numbers if said else [_NOT_SAID] * len(numbers)
        rows.append((tokens, labels))
    longest = max(len(tokens) for tokens, _ in rows)
    return (
        torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in rows]),
        torch.tensor([labels + [_NOT_SAID] * (longest - len(labels)) for _, labels in rows]),
    )
