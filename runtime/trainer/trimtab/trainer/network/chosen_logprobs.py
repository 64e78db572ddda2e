"""Log probabilities of chosen tokens, a chunk of them at a time, so that logits never exist whole.

A vocabulary of 150,000 makes logits the largest tensor by far: 16,000 tokens of them take 10 GB in float32. The
backward pass computes a chunk's logits again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

_CHUNK_LOGITS = 1 << 26
"""Logits in memory at a time: 256 MB in float32."""


class TokenScores(NamedTuple):
    """Of each chosen token; entropies of the distributions they were chosen from where asked for."""

    logprobs: torch.Tensor
    entropies: torch.Tensor | None


def chosen_logprobs(
    hidden: torch.Tensor,
    head: torch.Tensor,
    chosen: torch.Tensor,
    *,
    temperature: float,
    with_entropy: bool,
    chunk_logits: int = _CHUNK_LOGITS,
) -> TokenScores:
    """`hidden` are the states that predict the chosen tokens, `head` the matrix from states to logits."""
    size = max(1, chunk_logits // head.shape[0])
    logprobs: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    for start in range(0, len(chosen), size):
        scored = checkpoint(
            _score,
            hidden[start : start + size],
            head,
            chosen[start : start + size],
            temperature,
            with_entropy,
            use_reentrant=False,
        )
        logprobs.append(scored[0])
        if scored[1] is not None:
            entropies.append(scored[1])
    if not logprobs:
        # Still a function of the weights: on several ranks all must take part in the backward pass.
        nothing = hidden.float().sum(dim=-1) + 0.0 * head.float().sum()
        return TokenScores(nothing, nothing if with_entropy else None)
    return TokenScores(torch.cat(logprobs), torch.cat(entropies) if with_entropy else None)


def _score(
    hidden: torch.Tensor, head: torch.Tensor, chosen: torch.Tensor, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = linear(hidden, head).float() / temperature
    normalizer = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(-1, chosen[:, None])[:, 0] - normalizer
    if not with_entropy:
        return logprobs, None
    probabilities = torch.exp(logits - normalizer[:, None])
    return logprobs, normalizer - (probabilities * logits).sum(dim=-1)
