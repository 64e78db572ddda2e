"""Log probabilities of chosen tokens, a chunk of them at a time, so that logits never exist whole.

A vocabulary of 150,000 makes logits the largest tensor by far: 16,000 tokens of them take 10 GB in float32. The
backward pass computes a chunk's logits again, and makes their gradient from the formula instead of from a recorded
graph: one pass over them, where autograd takes six.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from trimtab.trainer.network.truncation import Truncation, kept_weights

_CHUNK_LOGITS = 1 << 29
"""Logits in memory at a time: 2 GB in float32."""
_SORTING = 4
"""What sorting takes besides, as a multiple of the logits."""
_WHOLE = Truncation()


class TokenScores(NamedTuple):
    """Of each chosen token; entropies of the distributions they were chosen from where asked for, and values where a
    network says those: then the logprobs are the ones of sampling."""

    logprobs: torch.Tensor
    entropies: torch.Tensor | None
    values: torch.Tensor | None = None


def chosen_logprobs(
    hidden: torch.Tensor,
    head: torch.Tensor,
    chosen: torch.Tensor,
    *,
    temperature: float,
    with_entropy: bool,
    truncation: Truncation = _WHOLE,
    chunk_logits: int = _CHUNK_LOGITS,
) -> TokenScores:
    """`hidden` are the states that predict the chosen tokens, `head` the matrix from states to logits. Of the
    distribution that tokens are drawn from: at the temperature, without those that the truncation leaves out.
    """
    rows = max(1, chunk_logits // head.shape[0] // (1 if truncation.nothing else _SORTING))
    logprobs, entropies = _ChosenLogprobs.apply(hidden, head, chosen, temperature, with_entropy, truncation, rows)
    return TokenScores(logprobs, entropies if with_entropy else None)


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        head: torch.Tensor,
        chosen: torch.Tensor,
        temperature: float,
        with_entropy: bool,
        truncation: Truncation,
        rows: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(len(chosen), dtype=torch.float32, device=hidden.device)
        normalizers, entropies = torch.empty_like(logprobs), torch.zeros_like(logprobs)
        edges, shares = torch.empty_like(logprobs), torch.empty_like(logprobs)
        score = _on(hidden.device, _score)
        for start in range(0, len(chosen), rows):
            part = slice(start, start + rows)
            logits = linear(hidden[part], head)
            kept = None
            if not truncation.nothing:
                kept = edges[part], shares[part] = truncation.edges(logits, temperature=temperature)
            logprobs[part], normalizers[part], entropies[part] = score(
                logits, chosen[part], temperature, with_entropy, kept
            )
        ctx.save_for_backward(hidden, head, chosen, normalizers, entropies, edges, shares)
        ctx.truncated = not truncation.nothing
        ctx.temperature, ctx.with_entropy, ctx.rows = temperature, with_entropy, rows
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob: torch.Tensor, by_entropy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, head, chosen, normalizers, entropies, edges, shares = ctx.saved_tensors
        by_hidden = torch.empty_like(hidden)
        # Summed up in float32: each chunk adds to all of it. A frozen head needs none.
        by_head = torch.zeros_like(head, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        slopes = _on(hidden.device, _slopes)
        for start in range(0, len(chosen), ctx.rows):
            part = slice(start, start + ctx.rows)
            by_logits = slopes(
                linear(hidden[part], head),
                chosen[part],
                normalizers[part],
                entropies[part],
                by_logprob[part],
                by_entropy[part] if ctx.with_entropy else None,
                ctx.temperature,
                (edges[part], shares[part]) if ctx.truncated else None,
            )
            by_hidden[part] = by_logits @ head
            if by_head is not None:
                _add_product(by_head, by_logits.T, hidden[part])
        return by_hidden, None if by_head is None else by_head.to(head.dtype), None, None, None, None, None


Kept = tuple[torch.Tensor, torch.Tensor]
"""Of each row, the edge of the tokens that are kept, and the share of those at it."""


def _score(
    logits: torch.Tensor, chosen: torch.Tensor, temperature: float, with_entropy: bool, kept: Kept | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scaled = logits.float() / temperature
    weights = None if kept is None else kept_weights(logits, chosen, *kept)
    normalizer = torch.logsumexp(scaled if weights is None else scaled + weights.log(), dim=-1)
    logprobs = scaled.gather(-1, chosen[:, None])[:, 0] - normalizer
    if not with_entropy:
        return logprobs, normalizer, torch.zeros_like(normalizer)
    probabilities = torch.exp(scaled - normalizer[:, None])
    if weights is not None:
        probabilities = probabilities * weights
    return logprobs, normalizer, normalizer - (probabilities * scaled).sum(dim=-1)


def _slopes(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    normalizer: torch.Tensor,
    entropy: torch.Tensor,
    by_logprob: torch.Tensor,
    by_entropy: torch.Tensor | None,
    temperature: float,
    kept: Kept | None,
) -> torch.Tensor:
    """By the logits: of log p(chosen) that is [token is chosen] - p, of the entropy -p (log p + entropy). Which tokens
    are kept is taken as given.
    """
    logprobs = logits.float() / temperature - normalizer[:, None]
    probabilities = torch.exp(logprobs)
    if kept is not None:
        probabilities = probabilities * kept_weights(logits, chosen, *kept)
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    slope = by_logprob[:, None] * ((tokens == chosen[:, None]).float() - probabilities)
    if by_entropy is not None:
        slope = slope - by_entropy[:, None] * probabilities * (logprobs + entropy[:, None])
    return (slope / temperature).to(logits.dtype)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """`total` is float32. A GPU adds to it as it multiplies in half precision."""
    if total.device.type == "cuda" and left.dtype != total.dtype:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


_compiled: dict[Any, Any] = {}


def _on(device: torch.device, function: Any) -> Any:
    """Fused into one kernel on a GPU, where a pass over the logits is what it costs."""
    if device.type != "cuda":
        return function
    if function not in _compiled:
        # Not for all shapes from the start: the vocabulary is the same in all chunks, and known is faster.
        _compiled[function] = torch.compile(function)
    return _compiled[function]
