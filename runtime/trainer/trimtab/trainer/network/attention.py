"""Causal attention over packed sequences, none of which sees another, for transformers models.

In half precision on a GPU there are kernels for it. Elsewhere neighbours of similar length are computed together:
padded on the right within their bundle, where a causal query never sees the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from trimtab.trainer.network.gpu_attention import attend

IMPLEMENTATION = "trimtab_packed"
# Sequences share a bundle as long as the shortest has this share of the longest's tokens.
_SIMILAR = 0.8


@dataclass(frozen=True)
class Packing:
    """How a pack is cut into sequences, the longest first."""

    lengths: torch.Tensor
    """In main memory. A tensor, because a compiled layer would be compiled again for other numbers."""
    half_precision_on_gpu: bool


def bundles(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of neighbours of similar length, as (first, one after the last)."""
    first = 0
    for number, length in enumerate(lengths):
        longest, shortest = max(lengths[first], length), min(lengths[first], length)
        if shortest < _SIMILAR * longest:
            yield first, number
            first = number
    if first < len(lengths):
        yield first, len(lengths)


def _by_bundles(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sequences: Sequence[int], *, scaling: float
) -> torch.Tensor:
    """(heads, tokens, width) each; out comes (tokens, heads, width)."""
    parts = []
    start = 0
    for first, last in bundles(sequences):
        lengths = sequences[first:last]
        end = start + sum(lengths)
        width = max(lengths)
        if min(lengths) == width:
            shape = (len(lengths), width)
            q, k, v = (_batched(states[:, start:end], shape) for states in (query, key, value))
            seen = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
            parts.append(seen.transpose(1, 2).flatten(0, 1))
        else:
            places = torch.arange(width, device=query.device)
            inside = places < torch.tensor(lengths, device=query.device)[:, None]
            q, k, v = (_padded(states[:, start:end], inside) for states in (query, key, value))
            seen = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
            parts.append(seen.transpose(1, 2)[inside])
        start = end
    return torch.cat(parts)


def _batched(states: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """(heads, tokens, width) to (sequences, heads, tokens, width), all of one length."""
    return states.reshape(states.shape[0], *shape, states.shape[2]).transpose(0, 1)


def _padded(states: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    padded = states.new_zeros(*inside.shape, states.shape[0], states.shape[2])
    padded[inside] = states.transpose(0, 1)
    return padded.transpose(1, 2)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    packing: Packing,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer, with a pack as a batch of one. `packing` comes with the model's call."""
    if packing.half_precision_on_gpu:
        q, k, v = (states[0].transpose(0, 1).contiguous() for states in (query, key, value))
        seen = attend(q, k, v, packing.lengths, scale=scaling)
    else:
        seen = _by_bundles(query[0], key[0], value[0], packing.lengths.tolist(), scaling=scaling)
    return seen[None], None


AttentionInterface.register(IMPLEMENTATION, packed_attention)
