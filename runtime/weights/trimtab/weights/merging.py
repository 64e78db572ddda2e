"""Merges adapters into the weights that they were trained beside: a checkpoint that needs no adapters any more.

Without torch, which whoever exports weights need not have.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimtab.weights.adapters import DOWN, UP, Adapter, InvalidAdapter, said_in, target_of
from trimtab.weights.baseline import SafetensorsFile
from trimtab.weights.layout import StateLayout, Tensor

_FLOATS: dict[str, type[np.floating]] = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
_BF16 = "BF16"
_DROPPED_BITS = 16
Matrix = npt.NDArray[np.float32]
Raw = npt.NDArray[np.uint8]


def merge_into(model: Path, adapters: Path, folder: Path) -> Adapter:
    """The model in a folder of its own, with the adapters of a safetensors file added to the weights that they belong
    to: in float32, rounded once to the type that each has. Raises InvalidAdapter when they do not belong to the model.
    """
    opened = SafetensorsFile(adapters)
    adapter = said_in(opened.layout.metadata)
    if adapter is None:
        raise InvalidAdapter(f"{adapters} has the weights of a whole model, not of adapters")
    changes = _by_weight(opened)
    _check_fits(model, changes)
    if folder.resolve() == model.resolve():
        raise InvalidAdapter(f"{folder} is the model itself; take another folder for the merged one")
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(model.iterdir()):
        if file.suffix == ".safetensors":
            _merge_file(file, folder / file.name, changes, adapter)
        elif file.is_file():
            shutil.copyfile(file, folder / file.name)
    return adapter


def _check_fits(model: Path, changes: Mapping[str, Mapping[str, Matrix]]) -> None:
    """Before anything is written."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in model.glob("*.safetensors"):
        with file.open("rb") as opened:
            shapes |= {tensor.name: tensor.shape for tensor in StateLayout.read(opened).tensors}
    for weight, matrices in changes.items():
        shape = (matrices[UP].shape[0], matrices[DOWN].shape[1])
        if shapes.get(weight) != shape or matrices[UP].shape[1] != matrices[DOWN].shape[0]:
            raise InvalidAdapter(
                f"{model} has no {weight} of shape {list(shape)}, which the adapters belong to; take the model that the"
                " job began with"
            )


def _by_weight(adapters: SafetensorsFile) -> dict[str, dict[str, Matrix]]:
    """A and B by the name of the weight that they belong to."""
    found: dict[str, dict[str, Matrix]] = {}
    for tensor in adapters.layout.tensors:
        place = target_of(tensor.name)
        if place is None:
            raise InvalidAdapter(f"{tensor.name} is no adapter's name")
        weight, matrix = place
        found.setdefault(weight, {})[matrix] = _matrix(tensor, adapters.bytes_of(tensor))
    for weight, matrices in found.items():
        if matrices.keys() != {DOWN, UP}:
            raise InvalidAdapter(f"{weight} has only one of {DOWN} and {UP}")
    return found


def _merge_file(source: Path, target: Path, changes: Mapping[str, Mapping[str, Matrix]], adapter: Adapter) -> None:
    """Tensor by tensor: there is never more than one of them in memory."""
    model = SafetensorsFile(source)
    with target.open("wb") as file:
        file.write(model.layout.prefix)
        for tensor in model.layout.tensors:
            raw = model.bytes_of(tensor)
            matrices = changes.get(tensor.name)
            file.write((raw if matrices is None else _merged(tensor, raw, matrices, adapter)).data)


def _merged(tensor: Tensor, raw: Raw, matrices: Mapping[str, Matrix], adapter: Adapter) -> Raw:
    change = np.float32(adapter.scale) * (matrices[UP] @ matrices[DOWN])
    return _rounded(_matrix(tensor, raw) + change, tensor.dtype)


def _matrix(tensor: Tensor, raw: Raw) -> Matrix:
    if tensor.dtype == _BF16:
        values = (raw.view(np.uint16).astype(np.uint32) << _DROPPED_BITS).view(np.float32)
    elif tensor.dtype in _FLOATS:
        values = raw.view(_FLOATS[tensor.dtype]).astype(np.float32)
    else:
        raise InvalidAdapter(f"{tensor.name} is of type {tensor.dtype}, which adapters are not merged into")
    return values.reshape(tensor.shape)


def _rounded(values: Matrix, dtype: str) -> Raw:
    if dtype != _BF16:
        return np.ascontiguousarray(values.astype(_FLOATS[dtype])).reshape(-1).view(np.uint8)
    bits = np.ascontiguousarray(values).view(np.uint32)
    # To the nearest, and from halfway to the even one.
    even = (bits >> _DROPPED_BITS) & 1
    return ((bits + 0x7FFF + even) >> _DROPPED_BITS).astype(np.uint16).reshape(-1).view(np.uint8)
