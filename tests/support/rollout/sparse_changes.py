"""What differs between two stored models, as sparse changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from trimtab.weights.apply.changes import SparseChange
from trimtab.weights.layout import StateLayout


def sparse_changes_between(old: Path, new: Path) -> list[SparseChange]:
    with (new / "model.safetensors").open("rb") as file:
        layout = StateLayout.read(file)
    before, after = load_file(old / "model.safetensors"), load_file(new / "model.safetensors")
    changes = []
    for tensor in layout.tensors:
        bits = after[tensor.name].view(torch.int16).flatten().numpy().view(np.uint16)
        indices = np.flatnonzero(before[tensor.name].view(torch.int16).flatten().numpy().view(np.uint16) != bits)
        half = len(indices) // 2  # a tensor may come in several changes
        changes += [SparseChange(tensor, part, bits[part]) for part in (indices[:half], indices[half:])]
    return changes
