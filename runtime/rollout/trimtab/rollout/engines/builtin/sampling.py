"""Sampling with exact logprobs: the probability returned for a token is the one it was drawn with.

What is drawn depends on the request's seed and on the token's position in its sequence, and on nothing else: not on
what the request is batched with, nor on how often it was paused or computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch.nn import functional

from trimtab.rollout.engines.builtin.generation import SamplingParams

_GREEDY_BELOW = 1e-5
_UNTRUNCATED = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0)
_BLOCK = 256
_SEED_BITS = 64


def uniform(seed: int, position: int) -> float:
    """In [0, 1), with 53 random bits."""
    key = (seed % 2**_SEED_BITS).to_bytes(8, "little") + position.to_bytes(8, "little")
    return (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 11) / 2**53


def sample(
    logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token per row of `logits` (rows, vocabulary) by inverting each row's distribution at its uniform number.

    Temperature 0 takes the most likely token and reports its logprob at temperature 1, as SGLang does.
    """
    # Nothing is drawn from a greedy row, so nothing is cut off it: of tokens that are equally likely, the one that is
    # taken might be among those that top-k or top-p leave out, and have no logprob.
    greedy = [p.temperature < _GREEDY_BELOW for p in params]
    params = [_UNTRUNCATED if likeliest else p for p, likeliest in zip(params, greedy, strict=True)]
    scores = logits.float()
    if any(p.temperature != 1.0 for p in params):
        scores = scores / torch.tensor([p.temperature for p in params], device=logits.device)[:, None]
    truncated = [row for row, p in enumerate(params) if p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0]
    if truncated:
        scores = scores.clone()
        scores[truncated] = _truncated(scores[truncated], [params[row] for row in truncated])
    highest, likeliest_tokens = scores.max(dim=-1, keepdim=True)
    weights = (scores - highest).exp_()
    total, drawn = _drawn(weights, torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None])
    tokens = torch.where(torch.tensor(greedy, device=logits.device)[:, None], likeliest_tokens, drawn)
    logprobs = (scores.gather(-1, tokens) - highest).double() - total.log()
    return tokens[:, 0].tolist(), logprobs[:, 0].tolist()


def _drawn(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of each row, and the first token at which its running sum passes that share of it.

    By blocks first, then within one block: a running sum over the whole vocabulary would cost more than the softmax.
    Running sums are in double precision: in float32 a number just below 1 rounds to 1, and draws a token without
    probability.
    """
    width = weights.shape[-1]
    blocks = functional.pad(weights, (0, -width % _BLOCK)).view(len(weights), -1, _BLOCK)
    sums = blocks.sum(dim=-1).double().cumsum(dim=-1)
    total = sums[:, -1:]
    points = uniforms * total
    chosen = torch.searchsorted(sums, points, right=True).clamp_(max=blocks.shape[1] - 1)
    before = functional.pad(sums, (1, 0)).gather(-1, chosen)
    within = blocks[torch.arange(len(blocks), device=blocks.device), chosen[:, 0]].double().cumsum(dim=-1)
    # The block summed on its own differs by a rounding: never go past its last token that has a probability.
    rest = torch.minimum(points - before, torch.nextafter(within[:, -1:], torch.zeros_like(before)))
    offset = torch.searchsorted(within, rest, right=True)
    # Weights that are not numbers find no place; their logprob says so.
    return total, (chosen * _BLOCK + offset).clamp_(max=width - 1)


def _truncated(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Keep those of the top-k that are in the smallest set whose probability reaches top-p, and that have min-p of the
    likeliest's. As in SGLang, each is a limit on the whole distribution, and not on what another has left of it.
    """
    ordered, indices = scores.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    ranks = torch.arange(scores.shape[-1], device=scores.device)[None, :]
    top_k = torch.tensor([p.top_k if p.top_k > 0 else scores.shape[-1] for p in params], device=scores.device)
    top_p = torch.tensor([p.top_p for p in params], device=scores.device)
    min_p = torch.tensor([p.min_p for p in params], device=scores.device)
    kept = (ranks < top_k[:, None]) & (probabilities.cumsum(dim=-1) - probabilities < top_p[:, None])
    kept &= probabilities >= min_p[:, None] * probabilities[:, :1]
    return torch.empty_like(scores).scatter_(-1, indices, ordered.masked_fill(~kept, -torch.inf))
