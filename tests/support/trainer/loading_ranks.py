"""Ranks that load a model of some size and say how much memory that took, and what each of them has of it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.trainer.samples import policy
from trimtab.trainer.learner import Learner
from trimtab.trainer.network.spread import held_here, whole

MODEL_BYTES = 4 * 45_000_000
"""In float32, about."""


def make_model(folder: Path) -> None:
    """All in its layers, of which each rank has a part."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=512, intermediate_size=1376, num_hidden_layers=14, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)  # type: ignore[arg-type]
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model.tie_weights()
    # Several files, and names in an index, as large models have.
    model.save_pretrained(folder, max_shard_size="20MB")


def run_rank(model: Path, target: Path, with_weights: bool, rank: int) -> None:
    """Writes the most memory that loading took, and with it the whole weights or what the rank holds."""
    before = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    learner = Learner(policy(), model_path=model)
    told = {"peak": torch.tensor(_highest() - before)}
    held = sum(held_here(parameter).numel() * 4 for parameter in learner.model.parameters())
    told["held"] = torch.tensor(held)
    if with_weights:
        told |= {name: whole(tensor.detach()).clone() for name, tensor in learner.model.named_parameters()}
    save_file(told, target / f"{rank}.safetensors")


def _resident() -> int:
    return _status("VmRSS")


def _highest() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
