"""Where master weights begin: anywhere among the values that are rounded to what was published.

A pretrained model comes in bfloat16, so its masters would all begin in the middle of their rounding. An update moves a
weight by about the learning rate, which is a small part of that rounding: nearly nothing of the first updates would
reach the engines. From a random beginning the weights that change with an
update are as many as its size asks for, from the first one on, and version 0 is the model as it came.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch.distributed.tensor import DTensor, Shard

from trimtab.trainer.network.packed_network import PackedNetwork
from trimtab.trainer.network.spread import rows_of

_ELEMENTS = 1 << 22
"""At a time, so that the numbers drawn take no more memory than a part of the model."""
_DROPPED_BITS = 16
"""That float32 has more than bfloat16."""
_MAGNITUDE = 0x7FFFFFFF
_INFINITE = 0x7F800000
_ODD = 0x2545F4914F6CDD1D
_LOW_BITS = 0x7FFFFFFF


@torch.no_grad()
def dither(network: PackedNetwork, *, published: torch.dtype) -> None:
    """Moves weights that lie exactly on a published value, each by what its name and place say: however the model is
    spread over ranks, it begins the same. Only bfloat16 is coarse enough to need it.
    """
    if published is not torch.bfloat16:
        return
    for name, parameter in network.causal_lm.named_parameters():
        held, first = _held_from(parameter.detach())
        values = held.view(-1)
        seed = zlib.crc32(name.encode())
        for start in range(0, values.numel(), _ELEMENTS):
            part = values[start : start + _ELEMENTS]
            part.copy_(_moved(part, first=first + start, seed=seed))


def _moved(values: torch.Tensor, *, first: int, seed: int) -> torch.Tensor:
    """Bits of floats are in order, and rounding is to the nearest in that order: half the dropped bits up or down."""
    bits = values.view(torch.int32)
    magnitude = bits & _MAGNITUDE
    movable = (bits & ((1 << _DROPPED_BITS) - 1) == 0) & (magnitude > 0) & (magnitude < _INFINITE)
    offsets = _drawn(values.numel(), first=first, seed=seed, device=values.device)
    return (bits + offsets * movable).view(torch.float32)


def _drawn(count: int, *, first: int, seed: int, device: torch.device) -> torch.Tensor:
    """For each place a number that is the same on all devices, from within half a rounding on either side."""
    mixed = (torch.arange(first, first + count, device=device) ^ (seed << 31)) * _ODD
    mixed = (mixed ^ ((mixed >> 29) & _LOW_BITS)) * _ODD
    half = 1 << (_DROPPED_BITS - 1)
    return (((mixed >> 32) & ((1 << _DROPPED_BITS) - 1)) % (2 * half - 1) - (half - 1)).int()


def _held_from(parameter: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What this rank holds of it, and the place of its first element in the whole."""
    if not isinstance(parameter, DTensor):
        return parameter, 0
    (placement,) = parameter.placements
    assert isinstance(placement, Shard)
    assert placement.dim == 0, "FSDP cuts tensors into rows"
    mesh = parameter.device_mesh
    rows = rows_of(parameter.shape[0], rank=mesh.get_local_rank(), ranks=mesh.size())
    return parameter.to_local(), rows.start * math.prod(parameter.shape[1:])
