"""Importance weights, the second moment that M2PO bounds, and the distance to a reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trimtab.api.algorithm import Correction
from trimtab.trainer.losses.corrections import importance_weights
from trimtab.trainer.losses.kl import kl_divergence
from trimtab.trainer.losses.m2po import furthest_kept, pushed_away


def weights(correction: Correction, ratios: list[float]) -> list[float]:
    sampled = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    return importance_weights(
        sampled + torch.tensor(ratios, dtype=torch.float64).log(), sampled_logprobs=sampled, correction=correction
    ).tolist()


def test_truncation_caps_weights_and_masking_leaves_tokens_out() -> None:
    ratios = [0.01, 0.4, 0.5, 1.0, 2.0, 2.1, 50.0]
    assert weights(Correction(), ratios) == pytest.approx([0.01, 0.4, 0.5, 1.0, 2.0, 2.0, 2.0])
    assert weights(Correction(type="Truncate", low=0.5, high=3.0), ratios) == pytest.approx(
        [0.5, 0.5, 0.5, 1.0, 2.0, 2.1, 3.0]
    )
    inside = Correction(type="Mask", low=0.45, high=2.05)
    assert weights(inside, ratios) == pytest.approx([0.0, 0.0, 0.5, 1.0, 2.0, 0.0, 0.0])
    assert weights(Correction(type="None"), ratios) == pytest.approx(ratios)


def test_no_gradient_flows_through_weights() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    assert not importance_weights(
        logprobs, sampled_logprobs=torch.tensor([-1.5, -1.5]), correction=Correction()
    ).requires_grad


def naive_limit(squares: list[float], bound: float) -> float:
    """Drop the largest, and all equal to it, until the mean is within the bound."""
    left = sorted(squares)
    while left and math.fsum(left) / len(left) > bound:
        largest = left[-1]
        left = [value for value in left if value < largest]
    if len(left) == len(squares):
        return math.inf
    return left[-1] if left else -1.0


@pytest.mark.parametrize("seed", range(50))
def test_the_largest_second_moments_go_until_the_mean_is_within_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    squares = (rng.normal(0, 0.3, int(rng.integers(1, 60))) ** 2).round(3).tolist()
    for bound in (0.0005, 0.01, 0.04, 0.2):
        limit = furthest_kept(torch.tensor(squares, dtype=torch.float64), bound=bound)
        kept = [value for value in squares if value <= limit]
        assert not kept or math.fsum(kept) / len(kept) <= bound + 1e-12
        if limit == naive_limit(squares, bound):
            continue
        # The prefix that fits may end between equal values, which then go together though the mean would allow some.
        ordered = sorted(squares)
        fitting = max(n for n in range(len(ordered) + 1) if n == 0 or math.fsum(ordered[:n]) / n <= bound + 1e-15)
        assert ordered[fitting - 1] == ordered[fitting] if fitting else limit == -1.0


def test_everything_stays_within_the_bound_and_an_empty_step_has_no_limit() -> None:
    assert furthest_kept(torch.tensor([0.01, 0.02]), bound=0.04) == math.inf
    assert furthest_kept(torch.zeros(0), bound=0.04) == math.inf
    assert furthest_kept(torch.tensor([5.0, 5.0]), bound=0.04) == -1.0


def test_only_tokens_on_their_way_out_are_looked_at() -> None:
    log_ratio = torch.tensor([0.5, 0.5, -0.5, -0.5, 0.0])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    assert pushed_away(log_ratio, advantages).tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimators_of_the_divergence_agree_with_the_exact_one_and_pull_back(estimator: str) -> None:
    """On a distribution of four tokens everything can be summed up: value by the estimator's own mean, gradient of all
    by that of the divergence."""
    logits = torch.tensor([0.3, -0.2, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.1, 0.1, 0.2, -0.1], dtype=torch.float64), 0)
    policy = torch.log_softmax(logits, 0)
    exact = (policy.exp() * (policy - reference)).sum()
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    values = kl_divergence(policy, reference_logprobs=reference, estimator=estimator)  # type: ignore[arg-type]
    mean = (policy.exp().detach() * values).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    if estimator != "k2":
        assert mean.item() == pytest.approx(exact.item(), rel=1e-9)
    assert mean.item() == pytest.approx(exact.item(), rel=0.1)
    if estimator == "k3":
        # As a loss it pulls along the divergence the other way round, which is the same to first order.
        (wanted,) = torch.autograd.grad(-(reference.exp() * torch.log_softmax(logits, 0)).sum(), logits)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)


def test_a_token_the_reference_holds_for_impossible_stays_finite() -> None:
    logprobs = torch.tensor([-0.1], requires_grad=True)
    kl = kl_divergence(logprobs, reference_logprobs=torch.tensor([-1e9]), estimator="k3")
    kl.sum().backward()
    assert torch.isfinite(kl).all()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()
