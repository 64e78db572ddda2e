"""Adapters of low rank in the built-in engine: added beside the model's own weights, which stay as they are.

Merged into weights of half precision most of an update would be lost in their rounding, and the engine would sample
from another policy than the trainer scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from trimtab.rollout.engines.builtin.sparse_update import WeightMismatchError
from trimtab.weights.adapters import DOWN, PREFIX, UP, Adapter, InvalidAdapter, said_in


@dataclass(frozen=True)
class LowRank:
    """The adapters of linear layers on the same input, side by side as the layers are."""

    down: torch.Tensor
    """(inputs, ranks)"""
    up: torch.Tensor
    """(ranks, outputs): zero where the adapter of one layer meets the outputs of another"""
    scale: float

    def added(self, outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.addmm(outputs, torch.mm(rows, self.down), self.up, alpha=self.scale)


@dataclass(frozen=True, kw_only=True)
class AdapterShape:
    """The adapters that an engine has room for, from its start on: their scale is part of what a CUDA graph records."""

    rank: int
    alpha: float
    targets: frozenset[str]

    def beside(
        self, outputs: Mapping[str, int], *, inputs: int, like: torch.Tensor, named: dict[str, torch.Tensor]
    ) -> LowRank | None:
        """For layers with so many outputs each, all zero. Views of each go into `named` by their names in files."""
        adapted = [name for name in outputs if name.rpartition(".")[2] in self.targets]
        if not adapted:
            return None
        down = like.new_zeros(inputs, self.rank * len(adapted))
        up = like.new_zeros(self.rank * len(adapted), sum(outputs.values()))
        start = 0
        for name, count in outputs.items():
            if name in adapted:
                first = self.rank * adapted.index(name)
                ranks = slice(first, first + self.rank)
                named[f"{PREFIX}{name}.{DOWN}.weight"] = down[:, ranks].t()
                named[f"{PREFIX}{name}.{UP}.weight"] = up[ranks, start : start + count].t()
            start += count
        return LowRank(down, up, self.alpha / self.rank)

    def check(self, adapter: Adapter) -> None:
        """Raises WeightMismatchError for adapters of another kind than there is room for."""
        said = (adapter.rank, adapter.alpha, frozenset(adapter.targets))
        if said != (self.rank, self.alpha, self.targets):
            raise WeightMismatchError(
                f"adapters of rank {adapter.rank} and alpha {adapter.alpha:g} for {', '.join(sorted(adapter.targets))};"
                f" the engine was started for rank {self.rank} and alpha {self.alpha:g} for"
                f" {', '.join(sorted(self.targets))}"
            )


def adapter_in(folder: Path) -> Adapter | None:
    """What the weights in a folder say they are; None for those of a whole model."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as opened:
                return said_in(opened.metadata() or {})
        except SafetensorError as error:
            raise WeightMismatchError(f"{file.name} is not a whole safetensors file: {error}") from None
        except InvalidAdapter as error:
            raise WeightMismatchError(f"{file.name}: {error}") from None
    return None
