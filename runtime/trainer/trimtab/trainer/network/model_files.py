"""The weights in a model's folder. A rank reads the rows that it holds from the safetensors files, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PIECE_BYTES = 64 << 20
"""What is read at once: as much memory is needed besides the weights themselves."""
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class UnsupportedModel(ValueError):
    """This trainer would not compute the model as it is meant to be; the message names the field."""


class ModelFiles:
    """Opened once for all tensors of a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises UnsupportedModel when the folder has no safetensors, or broken ones."""
        self._folder = folder
        self._files: dict[str, Path] = {}
        for path in _files_of(folder):
            try:
                with safe_open(path, framework="pt") as file:
                    self._files |= dict.fromkeys(file.keys(), path)
            except SafetensorError as error:
                raise UnsupportedModel(
                    f"policies[].model.uri: {path} is not a whole safetensors file: {error}"
                ) from None

    def have(self, name: str) -> bool:
        return name in self._files

    @torch.no_grad()
    def read(self, names: Iterable[str], into: torch.Tensor, *, shape: torch.Size, rows: range | None = None) -> None:
        """Fill `into` with the tensor that goes by one of these names and has this shape, or with some of its rows."""
        known = list(names)
        name = next((name for name in known if name in self._files), None)
        if name is None:
            raise UnsupportedModel(
                f"policies[].model.uri: {self._folder} has no tensor {known[0]}; save the whole model there with"
                " save_pretrained"
            )
        with safe_open(self._files[name], framework="pt") as file:
            stored = file.get_slice(name)
            dtype, has = stored.get_dtype(), torch.Size(stored.get_shape())
            if dtype not in _FLOATS and into.is_floating_point():
                raise UnsupportedModel(
                    f"policies[].model.uri: {name} in {self._files[name]} is stored as {dtype}; this trainer reads"
                    f" {', '.join(_FLOATS)}: take the model before it was quantised"
                )
            if has != shape:
                raise UnsupportedModel(
                    f"policies[].model.uri: {name} in {self._files[name]} has the shape {list(has)}, the configuration"
                    f" asks for {list(shape)}"
                )
            if not shape:
                into.copy_(file.get_tensor(name))
                return
            rows = rows if rows is not None else range(shape[0])
            row_bytes = max(1, shape[1:].numel() * _FLOATS.get(dtype, 8))
            step = max(1, _PIECE_BYTES // row_bytes)
            for first in range(rows.start, rows.stop, step):
                last = min(first + step, rows.stop)
                into[first - rows.start : last - rows.start].copy_(stored[first:last])


def _files_of(folder: Path) -> list[Path]:
    index, single = folder / _INDEX, folder / _SINGLE
    if index.is_file():
        try:
            names = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UnsupportedModel(f"policies[].model.uri: {index} is not an index of weights: {error!r}") from None
        outside = sorted(name for name in names if Path(name).name != name)
        if outside:
            raise UnsupportedModel(f"policies[].model.uri: {index} names {outside[0]}, which is not in its folder")
        missing = sorted(name for name in names if not (folder / name).is_file())
        if missing:
            raise UnsupportedModel(f"policies[].model.uri: {folder} has no {missing[0]}, which its index names")
        return [folder / name for name in sorted(names)]
    if single.is_file():
        return [single]
    raise UnsupportedModel(
        f"policies[].model.uri: {folder} has neither {_SINGLE} nor {_INDEX}; save the model as safetensors, as"
        " save_pretrained does"
    )
