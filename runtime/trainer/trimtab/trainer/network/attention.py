"""Causal attention over packed sequences, none of which sees another, for transformers models.

In half precision on a GPU one kernel takes all lengths. Elsewhere neighbours of similar length are computed together:
padded on the right within their bundle, where a causal query never sees the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

IMPLEMENTATION = "trimtab_packed"
# Sequences share a bundle as long as the shortest has this share of the longest's tokens.
_SIMILAR = 0.8
# Newer versions want to be told that queries share heads of keys; older ones see it.
_SHARED_HEADS: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}


@dataclass(frozen=True)
class Packing:
    """How a pack is cut into sequences, in the form that the kernel wants it."""

    lengths: tuple[int, ...]
    """For bundles. None where one kernel takes all: a compiled layer would be compiled again for others."""
    offsets: torch.Tensor
    """Where sequences begin, and the end of the last: int32, on the device."""
    longest: int
    """No sequence is longer. Rounded up, so that a compiled layer sees few numbers."""

    @classmethod
    def of(cls, lengths: Sequence[int], *, device: torch.device, one_kernel: bool) -> Packing:
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        offsets[1:] = torch.tensor(lengths, dtype=torch.int32).cumsum(0)
        return cls(
            lengths=() if one_kernel else tuple(lengths),
            offsets=offsets.to(device),
            longest=1 << (max(lengths) - 1).bit_length(),
        )


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
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, *, scaling: float
) -> torch.Tensor:
    """(heads, tokens, width) each; out comes (tokens, heads, width)."""
    parts = []
    start = 0
    for first, last in bundles(packing.lengths):
        lengths = packing.lengths[first:last]
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


def _by_one_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, *, scaling: float
) -> torch.Tensor:
    seen = varlen_attn(
        query.transpose(0, 1).contiguous(),
        key.transpose(0, 1).contiguous(),
        value.transpose(0, 1).contiguous(),
        packing.offsets,
        packing.offsets,
        packing.longest,
        packing.longest,
        scale=scaling,
        window_size=(-1, 0),
        **_SHARED_HEADS,
    )
    assert isinstance(seen, torch.Tensor)
    return seen


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
    kernel = _by_bundles if packing.lengths else _by_one_kernel
    return kernel(query[0], key[0], value[0], packing, scaling=scaling)[None], None


AttentionInterface.register(IMPLEMENTATION, packed_attention)
