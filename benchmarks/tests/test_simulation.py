"""The simulated step is a real AdamW step, and sizes of it are measured on blocks that come back exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.weights.simulation import (
    COLUMNS,
    Case,
    Regime,
    Schedule,
    StepPair,
    Tensor,
    rounded,
    simulate,
    sparsity_of,
    train,
)
from benchmarks.weights.sizes import CONTEXT, MEMORYLESS, measure
from trimtab.weights.layout import StateLayout

CASES = (Case(Regime.FRESH, 0.99), Case(Regime.STEADY, 0.99))
ROWS = 64
CHUNK = 1 << 16


def small_pairs(rate: float) -> list[StepPair]:
    return simulate(Tensor.random(11, rows=ROWS), CASES, [rate] * len(CASES))


def test_rounding_to_bf16_is_that_of_torch() -> None:
    values = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    ties = (np.arange(256, dtype=np.uint32) << 16 | 0x3F808000).view(np.float32)
    both = np.concatenate([values, ties])
    expected = torch.from_numpy(both).bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(rounded(both), expected)


def test_training_is_that_of_torch_adamw() -> None:
    rate = 1e-3
    first = np.random.default_rng(2).normal(size=CHUNK).astype(np.float32)
    base, target = np.empty((1, CHUNK), np.uint16), np.empty((1, CHUNK), np.uint16)
    masters = first[None].copy()
    train(masters, Schedule.of([rate]), np.random.default_rng(3), base, target)

    weights = torch.nn.Parameter(torch.from_numpy(first.copy()))
    optimizer = torch.optim.AdamW([weights], lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    random = np.random.default_rng(3)
    for step in range(11):
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 10, 1.0)
        weights.grad = torch.from_numpy(random.standard_normal(CHUNK, dtype=np.float32) * np.float32(1e-3))
        optimizer.step()
    assert np.allclose(masters[0], weights.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_larger_learning_rates_change_more_weights() -> None:
    assert sparsity_of(small_pairs(3e-6)[1]) < sparsity_of(small_pairs(3e-7)[1]) < 1.0


def test_simulation_repeats_exactly() -> None:
    for one, other in zip(small_pairs(1e-6), small_pairs(1e-6), strict=True):
        assert np.array_equal(one.base, other.base)
        assert np.array_equal(one.target, other.target)


def test_sizes_lie_between_the_limits_and_the_full_weights() -> None:
    layout = StateLayout.of({"weight": ("BF16", (ROWS, COLUMNS))})
    sizes = measure(small_pairs(3e-6)[1], layout).by_format
    assert sizes["fast"] >= sizes[MEMORYLESS]
    assert sizes["compact"] >= sizes[CONTEXT]
    assert sizes["compact"] < sizes["fast"] < sizes["gaps_xor_zstd"] < sizes["astraflow_u64"] < sizes["full"]


@pytest.mark.slow
def test_the_weights_have_the_median_magnitude_of_trained_models() -> None:
    (pair, _) = small_pairs(1e-7)
    values = (pair.base.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert float(np.median(np.abs(values))) == pytest.approx(0.019, rel=0.1)
