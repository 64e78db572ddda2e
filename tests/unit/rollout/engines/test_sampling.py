"""Sampling: the distribution drawn from is the one whose logprobs are returned."""

from __future__ import annotations

import math
import random

import pytest
import torch

from trimtab.rollout.engines.builtin.generation import SamplingParams
from trimtab.rollout.engines.builtin.sampling import sample

LOGITS = torch.tensor([2.0, -1.0, 0.5, 0.0, 1.0, -3.0, 1.5, 0.25])


def draws(params: SamplingParams, *, count: int, seed: int = 0) -> tuple[list[int], list[float]]:
    generator = random.Random(seed)
    return sample(LOGITS.repeat(count, 1), [params] * count, [generator.random() for _ in range(count)])


def expected_probabilities(params: SamplingParams) -> list[float]:
    """By the book, in plain floats: temperature, then the limits on the sorted probabilities, renormalised."""
    weights = [math.exp(logit / params.temperature) for logit in LOGITS.tolist()]
    probabilities = [weight / sum(weights) for weight in weights]
    kept, mass = set(), 0.0
    for rank, token in enumerate(sorted(range(len(weights)), key=lambda token: -probabilities[token])):
        if (params.top_k > 0 and rank >= params.top_k) or mass >= params.top_p:
            break
        if probabilities[token] < params.min_p * max(probabilities):
            break
        kept.add(token)
        mass += probabilities[token]
    return [p / mass if token in kept else 0.0 for token, p in enumerate(probabilities)]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=3.0),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.7),
        SamplingParams(top_k=5, top_p=0.8, temperature=1.5),
        SamplingParams(top_k=1),
        SamplingParams(min_p=0.3),
        SamplingParams(min_p=1.0),
        SamplingParams(min_p=0.15, top_p=0.9, top_k=4, temperature=0.8),
    ],
    ids=str,
)
def test_frequencies_and_logprobs_are_those_of_the_truncated_softmax(params: SamplingParams) -> None:
    count = 20_000
    tokens, logprobs = draws(params, count=count)
    expected = expected_probabilities(params)
    observed = torch.bincount(torch.tensor(tokens), minlength=len(expected)).tolist()
    assert all(seen == 0 for seen, p in zip(observed, expected, strict=True) if p == 0.0)
    support = [(seen, p * count) for seen, p in zip(observed, expected, strict=True) if p > 0.0]
    chi_square = sum((seen - wanted) ** 2 / wanted for seen, wanted in support)
    assert chi_square < 30.0  # seven degrees of freedom at most: above 30 once in 10 000 seeds
    for token, logprob in zip(tokens[:200], logprobs[:200], strict=True):
        assert logprob == pytest.approx(math.log(expected[token]), abs=1e-5)


def test_temperature_zero_takes_the_most_likely_and_reports_its_own_logprob() -> None:
    tokens, logprobs = draws(SamplingParams(temperature=0.0), count=10)
    assert set(tokens) == {0}
    assert logprobs[0] == pytest.approx(torch.log_softmax(LOGITS, 0)[0].item(), abs=1e-6)


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0, top_k=1), SamplingParams(temperature=0.0, top_p=0.01)]
)
def test_at_temperature_zero_one_of_many_equals_still_has_its_logprob(params: SamplingParams) -> None:
    for seed in range(50):
        logits = torch.randint(0, 3, (1, 1000), generator=torch.Generator().manual_seed(seed)).float()
        (token,), (logprob,) = sample(logits, [params], [0.5])
        assert logits[0, token] == logits.max()
        assert logprob == pytest.approx(torch.log_softmax(logits[0], 0)[token].item(), abs=1e-5)


def test_rows_with_different_parameters_do_not_disturb_each_other() -> None:
    limits: list[dict[str, float]] = [{"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {}]
    params = [SamplingParams.model_validate(limit) for limit in limits]
    uniforms = [0.9, 0.8, 0.7, 0.6, 0.5]
    together = sample(LOGITS.repeat(5, 1), params, uniforms)
    alone = [sample(LOGITS[None], [p], [u]) for p, u in zip(params, uniforms, strict=True)]
    assert together[0] == [tokens[0] for tokens, _ in alone]
    assert together[1] == pytest.approx([logprobs[0] for _, logprobs in alone])


def test_a_number_just_below_one_never_draws_a_token_without_probability() -> None:
    logits = torch.full((1, 1000), -20.0)
    logits[0, 3] = 5.0
    tokens, logprobs = sample(logits, [SamplingParams(top_k=1)], [math.nextafter(1.0, 0.0)])
    assert tokens == [3]
    assert logprobs == pytest.approx([0.0], abs=1e-6)
