"""What a GPU finds changed is what a byte-by-byte comparison finds. The kernel runs here by Triton's interpreter."""

from __future__ import annotations

import os

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel is imported

from trimtab.trainer.changed_kernel import CHUNK
from trimtab.trainer.device_shadow import DeviceShadow
from trimtab.weights.layout import StateLayout

SHAPES = {"a": (30, 70), "b": (9,), "c": (2, 1_500), "d": (1,)}


def _layout(dtype: str) -> StateLayout:
    return StateLayout.of({name: (dtype, shape) for name, shape in SHAPES.items()})


def _state(layout: StateLayout, tensors: dict[str, torch.Tensor], published: torch.dtype) -> np.ndarray:
    data = np.zeros(layout.data_bytes, dtype=np.uint8)
    for tensor in layout.tensors:
        raw = tensors[tensor.name].to(published).contiguous().view(torch.uint8).numpy().ravel()
        data[tensor.start : tensor.end] = raw
    return data


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**31), share=st.sampled_from([0.0, 0.001, 0.1, 1.0]), room=st.sampled_from([CHUNK, 1 << 20])
)
def test_it_finds_what_a_comparison_of_bytes_finds(seed: int, share: float, room: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    published, layout = torch.bfloat16, _layout("BF16")
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    shadow = DeviceShadow(layout, tensors, published=published, capacity=room)
    for _ in range(2):
        before = _state(layout, tensors, published)
        for tensor in tensors.values():
            tensor += (torch.rand(tensor.shape, generator=generator) < share) * 0.05
        after = _state(layout, tensors, published)
        found = shadow.take(tensors).by_block()
        expected = {}
        for block in layout.blocks:
            stretch = slice(block.start, block.end)
            changed = np.flatnonzero(before[stretch].view(np.uint16) != after[stretch].view(np.uint16))
            if changed.size:
                expected[block.index] = (changed, after[stretch].view(np.uint16)[changed])
        assert found.keys() == expected.keys()
        for index, (positions, values) in expected.items():
            assert np.array_equal(found[index].positions, positions)
            assert np.array_equal(found[index].values, values)
