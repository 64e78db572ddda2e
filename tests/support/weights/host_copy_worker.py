"""A process that moves a host copy from version to version until it is killed. Every version can be computed anew."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tests.support.weights.copy_states import Bytes, Site, content_of, elements_of, held_of
from trimtab.weights.layout import ELEMENT_TYPES, Block, StateLayout

_STRIDE = 7
"""A version changes every seventh element of a sparse block, others at each version."""


_DTYPES = ("F64", "I64", "F32", "I32", "U32", "BF16", "F16", "I16", "U16", "I8", "U8", "F8_E5M2", "F8_E4M3")


def model() -> StateLayout:
    """About two megabytes in thirteen blocks, because each dtype has one of its own."""
    return StateLayout.of({dtype: (dtype, (128 * 1001 // ELEMENT_TYPES[dtype].width,)) for dtype in _DTYPES})


def weights_at(layout: StateLayout, version: int) -> Bytes:
    data = np.empty(layout.data_bytes, dtype=np.uint8)
    for block in layout.blocks:
        elements = elements_of(data, block)
        indices = np.arange(len(elements), dtype=np.int64)
        written = version if _is_dense(block) else np.maximum(version - (version - indices) % _STRIDE, 0)
        elements[:] = _values(indices, written).astype(elements.dtype)
    return data


def run_updates(site: Site, *, reports: int) -> None:
    """Writes each version to the pipe once it is committed."""
    copy = site.opened()
    layout = copy.layout
    data = content_of(copy)
    for version in _versions_after(copy.held.version):
        for block in layout.blocks:
            positions = _positions(block, version)
            elements = elements_of(data, block)
            elements[positions] = _values(positions, version).astype(elements.dtype)
        with copy.begin(held_of(layout, data, version=version)) as transaction:
            for block in layout.blocks:
                if _is_dense(block):
                    transaction.put_whole(block.index, data[block.start : block.end])
                else:
                    positions = _positions(block, version)
                    transaction.put_sparse(
                        block.index, positions.astype(np.uint32), elements_of(data, block)[positions]
                    )
            with transaction.prepare() as update:
                update.commit(threads=2)
        os.write(reports, version.to_bytes(8, "little"))


def _versions_after(version: int) -> Iterator[int]:
    while True:
        version += 1
        yield version


def _is_dense(block: Block) -> bool:
    return block.index % 3 == 0


def _positions(block: Block, version: int) -> npt.NDArray[np.int64]:
    first, step = (0, 1) if _is_dense(block) else (version % _STRIDE, _STRIDE)
    return np.arange(first, block.size // block.element.width, step, dtype=np.int64)


def _values(indices: npt.NDArray[np.int64], version: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    return indices * 2654435761 + np.asarray(version, dtype=np.int64) * 40503
