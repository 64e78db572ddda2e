"""A sparse update as a file: the elements that changed from one version to the next, for an engine on the same machine.

A safetensors file with two tensors for each changed one, `NAME#indices` into the flattened tensor and `NAME#values` in
the type of the checkpoint. Its metadata names the version it changes, because on any other it would make a mixture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    # It brings numba, which takes a second to import and is of no use to an engine that starts.
    from trimtab.weights.apply.changes import SparseChange

_FORMAT = "trimtab-sparse-1"
_INDICES, _VALUES = "#indices", "#values"
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


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


def write_sparse_update(path: Path, changes: Iterable[SparseChange], *, base_version: str) -> None:
    """The changes of `trimtab.weights.apply.changes.sparse_changes`, of which one tensor may have several."""
    parts: dict[str, list[SparseChange]] = {}
    for change in changes:
        parts.setdefault(change.tensor.name, []).append(change)
    stored: dict[str, torch.Tensor] = {}
    for name, shares in parts.items():
        dtype = shares[0].tensor.dtype
        if dtype not in _DTYPES:
            raise WeightMismatchError(f"{name} is of type {dtype}; the built-in engine takes {', '.join(_DTYPES)}")
        bits = np.concatenate([share.values for share in shares])
        signed = torch.from_numpy(bits.view(f"i{bits.itemsize}"))
        stored[name + _INDICES] = torch.from_numpy(np.concatenate([share.indices for share in shares]))
        stored[name + _VALUES] = signed.view(_DTYPES[dtype])
    save_file(stored, path, metadata={"format": _FORMAT, "base_version": base_version})


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
    if indices.dtype != torch.int64 or indices.dim() != 1 or indices.shape != values.shape:
        raise WeightMismatchError(f"{name} needs as many 64-bit indices as values, in one dimension")
    if not values.dtype.is_floating_point:
        raise WeightMismatchError(f"{name} has values of type {values.dtype}, not a floating-point one")
    return SparseTensor(name=name, indices=indices, values=values)
