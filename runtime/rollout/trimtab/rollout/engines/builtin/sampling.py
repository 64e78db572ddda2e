"""Sampling with exact logprobs: the probability returned for a token is the one it was drawn with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trimtab.rollout.engines.builtin.generation import SamplingParams

_GREEDY_BELOW = 1e-5
_UNTRUNCATED = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1)


def sample(
    logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token per row of `logits` (rows, vocabulary) by inverting each row's distribution at its uniform number.

    The uniform number comes from the request's own generator: its tokens do not depend on what it is batched with.
    Temperature 0 takes the most likely token and reports its logprob at temperature 1, as SGLang does.
    """
    # Nothing is drawn from a greedy row, so nothing is cut off it: of tokens that are equally likely, the one that is
    # taken might be among those that top-k or top-p leave out, and have no logprob.
    greedy = [p.temperature < _GREEDY_BELOW for p in params]
    params = [_UNTRUNCATED if likeliest else p for p, likeliest in zip(params, greedy, strict=True)]
    temperatures = torch.tensor([p.temperature for p in params], device=logits.device)
    logprobs = torch.log_softmax(logits.float() / temperatures[:, None], dim=-1)
    if any(p.top_k > 0 or p.top_p < 1.0 for p in params):
        logprobs = _truncate(logprobs, params)
    # In float32 a number just below 1 rounds to 1, and would draw the last token even if that has no probability.
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, points, right=True).clamp_(max=logits.shape[-1] - 1)
    tokens = torch.where(torch.tensor(greedy, device=logits.device), logits.argmax(dim=-1), drawn[:, 0])
    return tokens.tolist(), logprobs.gather(-1, tokens[:, None])[:, 0].tolist()


def _truncate(logprobs: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Keep the top-k and the smallest set of tokens whose probability reaches top-p, and renormalise."""
    ordered, indices = logprobs.sort(dim=-1, descending=True)
    ranks = torch.arange(logprobs.shape[-1], device=logprobs.device)[None, :]
    top_k = torch.tensor([p.top_k if p.top_k > 0 else logprobs.shape[-1] for p in params], device=logprobs.device)
    top_p = torch.tensor([p.top_p for p in params], device=logprobs.device)
    before = ordered.exp().cumsum(dim=-1) - ordered.exp()
    kept = (ranks < top_k[:, None]) & (before < top_p[:, None])
    ordered = ordered.masked_fill(~kept, -torch.inf)
    ordered = ordered - ordered.logsumexp(dim=-1, keepdim=True)
    return torch.empty_like(logprobs).scatter_(-1, indices, ordered)
