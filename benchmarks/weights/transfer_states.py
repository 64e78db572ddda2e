"""Two states of a model, one training step apart, large enough to be transferred: made in seconds.

A step changes 1.1 % of bf16 weights to a neighbour, a weight half as likely as one of half its size. This is a simple
model of a running training; simulation.py has the real optimizer, and sizes are to be taken from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.weights.simulation import rounded
from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import Block, StateLayout

CHANGED_SHARE = 0.011
_SIDE = 4096
_SPREAD = 0.019 / 0.6745
"""Gaussian weights with a median of 0.019."""
_MOST_LIKELY = 0.8
_CHUNK = 1 << 20
_BISECTIONS = 40


@dataclass(frozen=True)
class TrainingStep:
    """`parameters` is a multiple of 2**24."""

    parameters: int
    seed: int

    @cached_property
    def layout(self) -> StateLayout:
        count = self.parameters // _SIDE**2
        return StateLayout.of({f"layers.{number:04d}.weight": ("BF16", (_SIDE, _SIDE)) for number in range(count)})

    def states(self) -> tuple[Bytes, Bytes]:
        """Before and after."""
        before, after = (np.empty(self.parameters, dtype=np.uint16) for _ in range(2))
        chances = _chances()

        def fill(start: int) -> None:
            part = slice(start, start + _CHUNK)
            before[part], after[part] = _step(np.random.default_rng((self.seed, start)), chances)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(fill, range(0, self.parameters, _CHUNK)):
                pass
        return before.view(np.uint8), after.view(np.uint8)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Before and after, as safetensors files."""
        paths = folder / "before.safetensors", folder / "after.safetensors"
        for path, state in zip(paths, self.states(), strict=True):
            with path.open("wb") as file:
                file.write(self.layout.prefix)
                state.tofile(file)
        return paths


@dataclass(frozen=True)
class StateInMemory:
    """A source for publishers."""

    layout: StateLayout
    data: Bytes

    def read(self, block: Block, out: Bytes) -> None:
        np.copyto(out, self.data[block.start : block.end])


def _step(
    rng: np.random.Generator, chances: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    before = rounded(rng.standard_normal(_CHUNK, dtype=np.float32) * np.float32(_SPREAD)).astype(np.uint16)
    chance = chances[_exponents(before)]
    drawn = rng.random(_CHUNK, dtype=np.float32)
    after = before.copy()
    after[drawn < chance] += 1
    after[drawn < chance / 2] -= 2
    return before, after


def _exponents(weights: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    return (weights >> np.uint16(7)) & np.uint16(0xFF)


def _chances() -> npt.NDArray[np.float32]:
    """The chance of a weight to change, by its exponent, so that the share of all is as wanted."""
    sample = rounded(np.random.default_rng(0).standard_normal(_CHUNK, dtype=np.float32) * np.float32(_SPREAD))
    counts = np.bincount(_exponents(sample.astype(np.uint16)), minlength=256)
    exponents = np.arange(256)

    def chances(one_at: float) -> npt.NDArray[np.float64]:
        by_exponent: npt.NDArray[np.float64] = np.minimum(_MOST_LIKELY, np.exp2(one_at - exponents))
        return by_exponent

    return chances(_bisected(lambda one_at: float(chances(one_at) @ counts) / _CHUNK)).astype(np.float32)


def _bisected(share: Callable[[float], float]) -> float:
    low, high = 0.0, 256.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if share(middle) > CHANGED_SHARE else (middle, high)
    return low
