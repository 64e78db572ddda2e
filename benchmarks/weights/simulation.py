"""Step pairs as training makes them: bf16 weights before and after one AdamW step of fp32 masters.

Gradients are independent Gaussian numbers, so one pass over a tensor serves all cases: the moments are the same for
every learning rate, only the masters differ. Each chunk has a generator of its own: results do not depend on threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np
import numpy.typing as npt

from benchmarks.report import note
from trimtab.weights.codec.change import Bytes, Elements

ROWS = COLUMNS = 4096
WARM_UP_STEPS = 10
_BETA1, _BETA2, _EPSILON, _WEIGHT_DECAY = 0.9, 0.999, 1e-8, 0.01
_GRADIENT_SCALE = 1e-3
_MEDIAN_WEIGHT = 0.019
_SCALE_SPREAD = 0.25
"""Standard deviation of the logarithm of row scales, and of column scales."""
_SAMPLE_ROWS = 2048
_SAMPLE_COLUMNS = 1024
_BISECTIONS = 14
_CHUNK = 1 << 16
"""Elements trained at a time: their state fits into a core's cache."""

Floats = npt.NDArray[np.float32]


class Regime(StrEnum):
    """Where the masters are when a run is measured."""

    FRESH = "fresh"
    """On the bf16 grid, as after loading a checkpoint."""
    STEADY = "steady"
    """Anywhere in their rounding cell, as after many steps."""


@dataclass(frozen=True)
class Case:
    """A regime, and the share of weights that shall not change in the measured step."""

    regime: Regime
    sparsity: float


@dataclass(frozen=True)
class StepPair:
    """The bytes of a tensor's bf16 weights before and after the measured step."""

    base: Bytes
    target: Bytes


@dataclass(frozen=True)
class Tensor:
    """What a simulated tensor starts from. Its elements are whole chunks."""

    seed: int
    rows: Floats
    columns: Floats

    @classmethod
    def random(cls, seed: int, *, rows: int = ROWS, columns: int = COLUMNS) -> Tensor:
        random = np.random.default_rng(seed)
        row_scales, column_scales = (
            np.exp(random.normal(0.0, _SCALE_SPREAD, size)).astype(np.float32) for size in (rows, columns)
        )
        return cls(seed, row_scales * np.float32(_MEDIAN_WEIGHT / _median_of_products()), column_scales)


@dataclass(frozen=True)
class Schedule:
    """What AdamW multiplies with in each step, a column of all cases; rounded to float32 as an optimizer rounds it."""

    steps: Floats
    decays: Floats
    roots: Floats

    @classmethod
    def of(cls, rates: Sequence[float]) -> Schedule:
        turn = np.arange(1, WARM_UP_STEPS + 2)[:, None, None]
        scheduled = np.array(rates)[:, None] * np.minimum(turn / WARM_UP_STEPS, 1.0)
        return cls(
            steps=(scheduled / (1 - _BETA1**turn)).astype(np.float32),
            decays=(1 - scheduled * _WEIGHT_DECAY).astype(np.float32),
            roots=np.sqrt(1 - _BETA2**turn).astype(np.float32).ravel(),
        )


def simulate(tensor: Tensor, cases: Sequence[Case], rates: Sequence[float]) -> list[StepPair]:
    """Trains the tensor through the warm-up and one step more, for every case with its learning rate."""
    size = tensor.rows.size * tensor.columns.size
    base, target = np.empty((len(cases), size), np.uint16), np.empty((len(cases), size), np.uint16)
    schedule = Schedule.of(rates)

    def train_chunk(start: int) -> None:
        part = slice(start, start + _CHUNK)
        random = np.random.default_rng((tensor.seed, start))
        masters = _first_masters(tensor, cases, start, random)
        train(masters, schedule, random, base[:, part], target[:, part])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(train_chunk, range(0, size, _CHUNK)))
    return [StepPair(old.view(np.uint8), new.view(np.uint8)) for old, new in zip(base, target, strict=True)]


def find_rates(cases: Sequence[Case], *, seed: int) -> list[float]:
    """The learning rate that gives each case its sparsity on a sample, by bisection of the logarithm."""
    sample = Tensor.random(seed, rows=_SAMPLE_ROWS, columns=_SAMPLE_COLUMNS)
    low, high = np.full(len(cases), math.log(1e-8)), np.full(len(cases), math.log(1e-4))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        pairs = simulate(sample, cases, np.exp(middle).tolist())
        sparse = np.array([sparsity_of(pair) > case.sparsity for case, pair in zip(cases, pairs, strict=True)])
        low, high = np.where(sparse, middle, low), np.where(sparse, high, middle)
    rates: list[float] = np.exp((low + high) / 2).tolist()
    for case, rate in zip(cases, rates, strict=True):
        note(f"{case.regime} {case.sparsity}: learning rate {rate:.3g}")
    return rates


def sparsity_of(pair: StepPair) -> float:
    return float(np.mean(pair.base.view(np.uint16) == pair.target.view(np.uint16)))


@cache
def _median_of_products() -> float:
    """The median of |Gaussian x row scale x column scale|, by numbers: the logarithm of a Gaussian is not symmetric."""
    random = np.random.default_rng(0)
    spread = math.sqrt(2) * _SCALE_SPREAD
    return float(np.median(np.abs(random.normal(size=1 << 20)) * np.exp(random.normal(0.0, spread, 1 << 20))))


def _first_masters(tensor: Tensor, cases: Sequence[Case], start: int, random: np.random.Generator) -> Floats:
    index = np.arange(start, start + _CHUNK)
    weights = random.standard_normal(_CHUNK, dtype=np.float32)
    weights *= tensor.rows[index // tensor.columns.size] * tensor.columns[index % tensor.columns.size]
    grid = rounded(weights).astype(np.uint32) << 16
    # A rounding cell has 65536 float32 numbers around a bfloat16, whatever its exponent.
    spread = grid + random.integers(-0x7FFF, 0x8000, _CHUNK, dtype=np.int32).view(np.uint32)
    bits = np.stack([spread if case.regime is Regime.STEADY else grid for case in cases])
    return bits.view(np.float32)


def train(masters: Floats, schedule: Schedule, random: np.random.Generator, base: Elements, target: Elements) -> None:
    """AdamW on masters, a row for each case; `base` and `target` get the weights before and after the last step."""
    size = masters.shape[1]
    first, second = np.zeros(size, np.float32), np.zeros(size, np.float32)
    for step, root in enumerate(schedule.roots):
        if step == WARM_UP_STEPS:
            base[:] = rounded(masters)
        gradient = random.standard_normal(size, dtype=np.float32) * np.float32(_GRADIENT_SCALE)
        first += np.float32(1 - _BETA1) * (gradient - first)
        second *= np.float32(_BETA2)
        second += np.float32(1 - _BETA2) * gradient * gradient
        move = first / (np.sqrt(second) / root + np.float32(_EPSILON))
        masters *= schedule.decays[step]
        masters -= schedule.steps[step] * move
    target[:] = rounded(masters)


def rounded(masters: Floats) -> npt.NDArray[np.uint32]:
    """The bits of the nearest bfloat16, ties to even."""
    bits = masters.view(np.uint32)
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
