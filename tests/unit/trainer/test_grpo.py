"""The GRPO loss against a reference of its own, written over single tokens in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trimtab.trainer.losses.grpo import grpo_loss

LOW, HIGH = 0.2, 0.3


def reference(
    logprobs: np.ndarray, sampled: np.ndarray, advantages: np.ndarray, mask: np.ndarray
) -> tuple[float, np.ndarray]:
    """Loss and its gradient by logprobs, from the definition: clip where the ratio has gone too far in A's favour."""
    loss = 0.0
    gradient = np.zeros_like(logprobs)
    for row in range(len(logprobs)):
        length = max(1, int(mask[row].sum()))
        for column in np.flatnonzero(mask[row]):
            advantage = float(advantages[row])
            ratio = math.exp(logprobs[row, column] - sampled[row, column])
            clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
            weight = 1 / length
            if ratio * advantage <= clipped * advantage:
                loss -= weight * ratio * advantage
                gradient[row, column] = -weight * ratio * advantage
            else:
                loss -= weight * clipped * advantage
    return loss, gradient


def case(seed: int, *, rows: int = 7, columns: int = 11, spread: float = 0.5) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    sampled = -generator.exponential(1.0, (rows, columns))
    return {
        "logprobs": sampled + generator.normal(0, spread, (rows, columns)),
        "sampled": sampled,
        "advantages": generator.normal(0, 1, rows),
        "mask": generator.random((rows, columns)) < 0.6,
    }


def loss_of(values: dict[str, np.ndarray], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = torch.tensor(values["logprobs"], dtype=dtype, requires_grad=True)
    loss = grpo_loss(
        logprobs,
        sampled_logprobs=torch.tensor(values["sampled"], dtype=dtype),
        advantages=torch.tensor(values["advantages"], dtype=dtype),
        mask=torch.tensor(values["mask"]),
        clip_low=LOW,
        clip_high=HIGH,
    )
    loss.backward()
    assert logprobs.grad is not None
    return loss.detach(), logprobs.grad


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.01, 0.5, 3.0])
def test_value_and_gradient_match_the_definition(seed: int, spread: float) -> None:
    values = case(seed, spread=spread)
    loss, gradient = loss_of(values, dtype=torch.float64)
    expected, expected_gradient = reference(**values)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient.numpy(), expected_gradient, rtol=1e-5, atol=1e-12)


def test_float32_is_close_enough() -> None:
    values = case(3)
    loss, gradient = loss_of(values, dtype=torch.float32)
    expected, expected_gradient = reference(**values)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient.numpy(), expected_gradient, rtol=1e-4, atol=1e-7)


def test_rows_without_a_model_token_count_in_the_mean_and_pull_nowhere() -> None:
    values = case(5)
    values["mask"][2] = False
    loss, gradient = loss_of(values, dtype=torch.float64)
    expected, _ = reference(**values)
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    assert not gradient[2].any()


def test_masked_tokens_pull_nowhere() -> None:
    values = case(6)
    _, gradient = loss_of(values, dtype=torch.float64)
    assert not gradient[~torch.tensor(values["mask"])].any()


@pytest.mark.parametrize(("advantage", "log_ratio", "bound"), [(1.0, 30.0, -(1 + HIGH)), (-1.0, -30.0, 1 - LOW)])
def test_ratios_far_outside_in_favour_are_clipped_flat(advantage: float, log_ratio: float, bound: float) -> None:
    values = {
        "logprobs": np.array([[-1.0 + log_ratio]]),
        "sampled": np.array([[-1.0]]),
        "advantages": np.array([advantage]),
        "mask": np.array([[True]]),
    }
    loss, gradient = loss_of(values, dtype=torch.float32)
    assert loss.item() == pytest.approx(bound, rel=1e-6)
    assert gradient.item() == 0.0


def test_shares_of_micro_batches_add_up_to_the_step() -> None:
    values = case(9, rows=12)
    whole, whole_gradient = loss_of(values, dtype=torch.float64)
    for cuts in ([3], [1, 2, 3], [6, 7], list(range(1, 12))):
        parts = [
            loss_of({name: value[start:end] for name, value in values.items()}, dtype=torch.float64)
            for start, end in zip([0, *cuts], [*cuts, 12], strict=True)
        ]
        assert sum(loss.item() for loss, _ in parts) == pytest.approx(whole.item(), rel=1e-12)
        np.testing.assert_allclose(torch.cat([g for _, g in parts]).numpy(), whole_gradient.numpy(), rtol=1e-12)
