"""Adapters of a seed for a model, as a pool has them in its copy."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from trimtab.api.lora import ALL_TARGETS
from trimtab.weights.adapters import PREFIX, Adapter


def make_adapters(model: Path, folder: Path, *, rank: int, seed: int, size: float = 0.2) -> Path:
    """In bfloat16, for all targets. With `size` 0 they change nothing."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    with safe_open(model / "model.safetensors", framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - it is not a mapping
            module = name.removesuffix(".weight")
            if module.rpartition(".")[2] in ALL_TARGETS and name.endswith(".weight"):
                outputs, inputs = opened.get_slice(name).get_shape()
                down = torch.randn(rank, inputs, generator=generator) / inputs**0.5
                up = size * torch.randn(outputs, rank, generator=generator)
                made[f"{PREFIX}{module}.lora_A.weight"] = down.to(torch.bfloat16)
                made[f"{PREFIX}{module}.lora_B.weight"] = up.to(torch.bfloat16)
    folder.mkdir(parents=True)
    adapter = Adapter(rank=rank, alpha=2.0 * rank, targets=ALL_TARGETS, base=str(model))
    # Of several notes the library writes now this one first, now that one, and a version's header must stay the same.
    notes = {name: text for name, text in adapter.metadata().items() if name != "format"}
    save_file(made, folder / "model.safetensors", metadata=notes)
    return folder
