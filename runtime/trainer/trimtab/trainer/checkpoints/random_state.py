"""The random numbers a rank would draw next, as tensors."""

from __future__ import annotations

import hashlib
import random
import struct

import numpy as np
import torch

_NUMPY_KIND = "MT19937"
_NUMPY_KEYS = 624


def captured() -> dict[str, torch.Tensor]:
    """Of every generator that a rank has, by name."""
    state = {
        "torch": torch.get_rng_state(),
        "numpy": torch.tensor(_numpy_numbers(), dtype=torch.int64),
        "python": torch.tensor(_python_numbers(), dtype=torch.int64),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, torch.Tensor]) -> None:
    """What `captured` gave, of some generators or of all."""
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state:
        numbers = state["numpy"].tolist()
        keys = np.array(numbers[:_NUMPY_KEYS], dtype=np.uint32)
        position, has_gauss, gauss = numbers[_NUMPY_KEYS:]
        np.random.set_state((_NUMPY_KIND, keys, position, has_gauss, _as_float(gauss)))
    if "python" in state:
        version, *numbers, has_gauss, gauss = state["python"].tolist()
        random.setstate((version, tuple(numbers), _as_float(gauss) if has_gauss else None))


def seed(generators: set[str], *, material: str) -> None:
    """Begin anew, and the same wherever the material is."""
    number = int.from_bytes(hashlib.sha256(material.encode()).digest()[:4], "little")
    if "torch" in generators:
        torch.default_generator.manual_seed(number)
    if "cuda" in generators:
        torch.cuda.manual_seed(number)
    if "numpy" in generators:
        np.random.seed(number)
    if "python" in generators:
        random.seed(number)


def _numpy_numbers() -> list[int]:
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    assert state["bit_generator"] == _NUMPY_KIND
    inner = state["state"]
    return [*inner["key"].tolist(), inner["pos"], state["has_gauss"], _as_integer(state["gauss"])]


def _python_numbers() -> list[int]:
    version, numbers, gauss = random.getstate()
    return [version, *numbers, int(gauss is not None), _as_integer(gauss or 0.0)]


def _as_integer(value: float) -> int:
    """The same bits."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _as_float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
