"""A sparse update as a file: the elements that changed from one version to the next, for an engine on the same machine.

A safetensors file with two tensors for each changed one, `NAME#indices` into the flattened tensor and `NAME#values` in
the type of the checkpoint. Its metadata names the version it changes, because on any other it would make a mixture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from trimtab.weights.layout import StateLayout

if TYPE_CHECKING:
    # Each is of use to one side only, and takes seconds to import: torch to the engine, which reads, numba to the
    # worker, which writes.
    import torch

    from trimtab.weights.apply.changes import SparseChange

_FORMAT = "trimtab-sparse-1"
_INDICES, _VALUES = "#indices", "#values"
_DTYPES = ("BF16", "F16", "F32", "F64")


class WeightMismatchError(ValueError):
    """The new weights do not fit the model that is being served; nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class SparseTensor:
    """New values of elements of one tensor."""

    name: str
    indices: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class SparseUpdate:
    """All that changed from `base_version`."""

    base_version: str
    tensors: tuple[SparseTensor, ...]


@dataclass(frozen=True, kw_only=True)
class PlacedTensor:
    """New values of elements of one tensor that has them, on its device."""

    name: str
    where: tuple[torch.Tensor, ...]
    values: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class PlacedUpdate:
    """An update that fits, where it will be needed: all that is left is to write it."""

    base_version: str
    tensors: tuple[PlacedTensor, ...]


def write_sparse_update(path: Path, changes: Iterable[SparseChange], *, base_version: str) -> None:
    """The changes of `trimtab.weights.apply.changes.sparse_changes`, of which one tensor may have several."""
    parts: dict[str, list[SparseChange]] = {}
    for change in changes:
        parts.setdefault(change.tensor.name, []).append(change)
    stored: dict[str, npt.NDArray[Any]] = {}
    types: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shares in parts.items():
        dtype = shares[0].tensor.dtype
        if dtype not in _DTYPES:
            raise WeightMismatchError(f"{name} is of type {dtype}; the built-in engine takes {', '.join(_DTYPES)}")
        indices = stored[name + _INDICES] = np.concatenate([share.indices for share in shares])
        stored[name + _VALUES] = np.concatenate([share.values for share in shares])
        types |= {name + _INDICES: ("I64", indices.shape), name + _VALUES: (dtype, indices.shape)}
    layout = StateLayout.of(types, metadata={"format": _FORMAT, "base_version": base_version})
    with path.open("wb") as file:
        file.write(layout.prefix)
        for tensor in layout.tensors:
            file.write(stored[tensor.name].data)


def read_sparse_update(path: Path) -> SparseUpdate:
    tensors: list[SparseTensor] = []
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT or "base_version" not in metadata:
                raise WeightMismatchError(f"{path.name} is not a sparse update of format {_FORMAT}")
            names = set(file.keys())
            for name in sorted(names):
                if name.endswith(_INDICES):
                    base = name.removesuffix(_INDICES)
                    if base + _VALUES not in names:
                        raise WeightMismatchError(f"{path.name} has indices of {base} and no values")
                    tensors.append(_tensor(base, file.get_tensor(name), file.get_tensor(base + _VALUES)))
    except SafetensorError as error:
        raise WeightMismatchError(f"{path.name} is not a whole safetensors file: {error}") from None
    return SparseUpdate(base_version=metadata["base_version"], tensors=tuple(tensors))


def _tensor(name: str, indices: torch.Tensor, values: torch.Tensor) -> SparseTensor:
    import torch

    if indices.dtype != torch.int64 or indices.dim() != 1 or indices.shape != values.shape:
        raise WeightMismatchError(f"{name} needs as many 64-bit indices as values, in one dimension")
    if not values.dtype.is_floating_point:
        raise WeightMismatchError(f"{name} has values of type {values.dtype}, not a floating-point one")
    return SparseTensor(name=name, indices=indices, values=values)
