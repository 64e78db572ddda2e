"""What makes a model of weights: its configuration, tokenizer and templates, beside them in one folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from trimtab.weights.adapters import said_in
from trimtab.weights.baseline import SafetensorsFile

_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


def is_adapters(file: Path) -> bool:
    """Which are no model, whatever lies beside them."""
    return said_in(SafetensorsFile(file).layout.metadata) is not None


def copy_all_but_weights(model: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            shutil.copyfile(file, folder / file.name)
