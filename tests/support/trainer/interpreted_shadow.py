"""`python -m tests.support.trainer.interpreted_shadow`: what a GPU finds changed is what a comparison of bytes finds.
The kernel runs by Triton's interpreter, which must be asked for before anything imports Triton: hence a process of its
own.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import torch

from tests.support.trainer.interpreted_ranks import check_ranks
from trimtab.trainer.changed_kernel import CHUNK
from trimtab.trainer.device_shadow import DeviceShadow
from trimtab.weights.layout import StateLayout

_SHAPES = {"a": (30, 70), "b": (9,), "c": (2, 1_500), "d": (1,)}
_TYPES = {torch.bfloat16: "BF16", torch.float16: "F16"}


def _state(layout: StateLayout, tensors: dict[str, torch.Tensor], published: torch.dtype) -> npt.NDArray[np.uint8]:
    data = np.zeros(layout.data_bytes, dtype=np.uint8)
    for tensor in layout.tensors:
        data[tensor.start : tensor.end] = tensors[tensor.name].to(published).view(torch.uint8).numpy().ravel()
    return data


def check(published: torch.dtype, *, share: float, capacity: int, seed: int) -> None:
    """Two updates, each of about this share of the weights, which the second makes infinite."""
    generator = torch.Generator().manual_seed(seed)
    layout = StateLayout.of({name: (_TYPES[published], shape) for name, shape in _SHAPES.items()})
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in _SHAPES.items()}
    shadow = DeviceShadow(layout, tensors, published=published, capacity=capacity)
    for value in (0.05, float("inf")):
        before = _state(layout, tensors, published)
        for tensor in tensors.values():
            tensor[torch.rand(tensor.shape, generator=generator) < share] += value
        after = _state(layout, tensors, published)
        found = shadow.take(tensors).by_block()
        for block in layout.blocks:
            old, new = (state[block.start : block.end].view(np.uint16) for state in (before, after))
            positions = np.flatnonzero(old != new)
            assert (block.index in found) == bool(positions.size)
            if positions.size:
                np.testing.assert_array_equal(found[block.index].positions, positions)
                np.testing.assert_array_equal(found[block.index].values, new[positions])


def main() -> None:
    # First: ranks are forked, and what computing starts does not survive that.
    check_ranks()
    cases = itertools.product(_TYPES, (0.0, 0.001, 0.1, 1.0), (CHUNK, 1 << 20))
    for seed, (published, share, capacity) in enumerate(cases):
        check(published, share=share, capacity=capacity, seed=seed)


if __name__ == "__main__":
    main()
