"""Layouts: safetensors headers that a reader accepts, and blocks that cover the data once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from trimtab.weights.layout import BLOCK_BYTES, ELEMENT_TYPES, InvalidLayout, StateLayout

SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
STATES = st.dictionaries(
    st.text("abc.", min_size=1, max_size=5), st.tuples(st.sampled_from(list(ELEMENT_TYPES)), SHAPES)
)


@given(STATES)
def test_a_layout_reads_back_from_its_header(state: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    layout = StateLayout.of(state)
    assert StateLayout.parse(layout.header) == layout
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in layout.tensors} == state
    assert len(layout.prefix) % 8 == 0


@given(STATES)
def test_blocks_cover_the_data_once_and_never_mix_types(state: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    layout = StateLayout.of(state)
    offset = 0
    for index, block in enumerate(layout.blocks):
        assert (block.index, block.start) == (index, offset)
        assert 0 < block.size <= BLOCK_BYTES
        assert block.start % block.element.width == block.size % block.element.width == 0
        inside = [t for t in layout.tensors if t.start < block.end and t.end > block.start]
        assert {tensor.dtype for tensor in inside} == {block.dtype}
        offset = block.end
    assert offset == layout.data_bytes


def test_large_tensors_have_blocks_of_their_own_and_small_ones_share() -> None:
    small = {f"small{n:02}": ("BF16", (1 << 20,)) for n in range(20)}
    layout = StateLayout.of({"a.large": ("BF16", (40 << 20,)), **small})
    sizes = [block.size for block in layout.blocks]
    assert sizes == [16 << 20] * 5 + [16 << 20, 16 << 20, 8 << 20]


def test_more_than_two_to_the_32_elements_are_cut_like_any_other() -> None:
    layout = StateLayout.of({"huge": ("BF16", (1 << 17, (1 << 16) + 3))})
    assert layout.data_bytes == 2 * ((1 << 33) + 3 * (1 << 17))
    assert sum(block.size for block in layout.blocks) == layout.data_bytes
    assert all(block.size // 2 < 1 << 32 for block in layout.blocks)


def test_safetensors_reads_a_file_with_our_header(tmp_path: Path) -> None:
    layout = StateLayout.of({"w": ("F32", (2, 3)), "b": ("BF16", (5,)), "none": ("I8", (0, 4))})
    path = tmp_path / "model.safetensors"
    path.write_bytes(layout.prefix + bytes(layout.data_bytes))
    with safe_open(path, framework="pt") as file:
        assert {name: tuple(file.get_tensor(name).shape) for name in file.keys()} == {  # noqa: SIM118
            "w": (2, 3),
            "b": (5,),
            "none": (0, 4),
        }


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}, "w: bytes 0 to 9"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, "w: bytes 4 to 12"),
        ({"w": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}, "dtype F99 is not supported"),
        ({"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, "not a safetensors header"),
        ({"w": {"dtype": "F32", "shape": [2]}}, "not a safetensors header"),
        ([1, 2], "not a safetensors header"),
        (
            {
                "a": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
            },
            "not aligned",
        ),
    ],
)
def test_a_bad_header_is_refused_with_the_reason(entry: object, reason: str) -> None:
    text = json.dumps(entry).encode()
    with pytest.raises(InvalidLayout, match=reason):
        StateLayout.parse(text + b" " * (-len(text) % 8))


def test_an_unpadded_or_oversize_header_is_refused() -> None:
    with pytest.raises(InvalidLayout, match="pad it"):
        StateLayout.parse(b"{} ")
    with pytest.raises(InvalidLayout, match=f"more than {100 << 20}"):
        StateLayout.parse(b"{}".ljust((100 << 20) + 8))


def test_metadata_in_a_header_is_no_tensor() -> None:
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    assert StateLayout.parse(header + b" " * (-len(header) % 8)).tensors == ()
