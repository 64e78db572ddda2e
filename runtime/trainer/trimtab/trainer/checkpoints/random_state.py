"""The random numbers a rank would draw next, as tensors. Training draws from torch alone; what else is random, such as
the delay before a repeated request, must not repeat itself after a restart.
"""

from __future__ import annotations

import hashlib

import torch


def captured() -> dict[str, torch.Tensor]:
    """Of every generator that a rank has, by name."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, torch.Tensor]) -> None:
    """What `captured` gave, of some generators or of all."""
    if "cpu" in state:
        torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def seed(generators: set[str], *, material: str) -> None:
    """Begin anew, and the same wherever the material is."""
    number = int.from_bytes(hashlib.sha256(material.encode()).digest()[:8], "little", signed=True)
    if "cpu" in generators:
        torch.default_generator.manual_seed(number)
    if "cuda" in generators:
        torch.cuda.manual_seed(number)
