"""Logprobs and gradients of a distribution that tokens were left out of, against one made token by token."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from trimtab.api.sampling import Sampling
from trimtab.rollout.engines.builtin.generation import SamplingParams
from trimtab.rollout.engines.builtin.sampling import sample
from trimtab.trainer.network.chosen_logprobs import chosen_logprobs
from trimtab.trainer.network.truncation import Truncation

ROWS, VOCABULARY, WIDTH = 60, 41, 6
LIMITS: list[dict[str, Any]] = [
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": VOCABULARY + 3},
    {"top_p": 0.7},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 9, "top_p": 0.8},
    {"top_k": 9, "top_p": 0.8, "min_p": 0.15},
]


def states(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, WIDTH, generator=chance, requires_grad=True)
    return hidden, torch.randn(VOCABULARY, WIDTH, generator=chance, requires_grad=True)


def kept_tokens(row: list[float], *, top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    """By the definition, in plain floats: of the whole distribution, each limit by itself."""
    order = sorted(range(len(row)), key=lambda token: -row[token])
    kept, mass = [], 0.0
    for rank, token in enumerate(order):
        if (top_k > 0 and rank >= top_k) or mass >= top_p or row[token] < min_p * row[order[0]]:
            break
        kept.append(token)
        mass += row[token]
    return kept


def drawn(logits: torch.Tensor, limits: dict[str, Any], temperature: float) -> tuple[torch.Tensor, list[float]]:
    chance = random.Random(1)
    params = SamplingParams(temperature=temperature, **limits)
    tokens, logprobs = sample(logits, [params] * len(logits), [chance.random() for _ in logits])
    return torch.tensor(tokens), logprobs


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.8])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_logprobs_entropies_and_gradients_are_those_of_what_is_kept(limits: dict[str, Any], temperature: float) -> None:
    hidden, head = states()
    logits = (hidden @ head.T).double() / temperature
    chosen, _ = drawn((hidden @ head.T).detach(), limits, temperature)
    wanted, wanted_entropies = [], []
    for row, token in zip(logits, chosen.tolist(), strict=True):
        kept = kept_tokens(torch.softmax(row, dim=-1).tolist(), **limits)
        assert token in kept
        distribution = torch.log_softmax(row[kept], dim=-1)
        wanted.append(distribution[kept.index(token)])
        wanted_entropies.append(-(distribution.exp() * distribution).sum())
    by_hand, by_hand_entropies = torch.stack(wanted), torch.stack(wanted_entropies)
    weights = torch.linspace(-1, 1, ROWS)
    expected = torch.autograd.grad(((by_hand + 0.3 * by_hand_entropies) * weights).sum(), (hidden, head))
    for chunk in (1 << 20, 4 * 7 * VOCABULARY):
        scores = chosen_logprobs(
            hidden,
            head,
            chosen,
            temperature=temperature,
            with_entropy=True,
            truncation=Truncation(**limits),
            chunk_logits=chunk,
        )
        assert scores.entropies is not None
        torch.testing.assert_close(scores.logprobs, by_hand.float(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(scores.entropies, by_hand_entropies.float(), rtol=1e-4, atol=1e-4)
        found = torch.autograd.grad(((scores.logprobs + 0.3 * scores.entropies) * weights).sum(), (hidden, head))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_engine_and_trainer_say_the_same_of_the_same_weights(limits: dict[str, Any]) -> None:
    hidden, head = states(seed=3)
    sampling = Sampling(temperature=0.8, **limits)
    with torch.no_grad():
        chosen, told = drawn(hidden @ head.T, limits, sampling.temperature)
        scores = chosen_logprobs(
            hidden, head, chosen, temperature=sampling.temperature, with_entropy=False,
            truncation=Truncation.of(sampling),
        )  # fmt: skip
    torch.testing.assert_close(scores.logprobs, torch.tensor(told), rtol=0, atol=2e-5, check_dtype=False)


@pytest.mark.parametrize("limits", [{"top_k": 4}, {"top_p": 0.4}, {"top_k": 4, "min_p": 0.01}], ids=str)
def test_of_equal_tokens_at_the_edge_any_may_have_been_drawn(limits: dict[str, Any]) -> None:
    """Logits of half precision: twelve tokens share the place of the fourth. An engine keeps so many, whichever."""
    logits = torch.full((ROWS, VOCABULARY), -4.0)
    logits[:, :3] = torch.tensor([2.0, 1.0, 0.5])
    logits[:, 3:15] = 0.0
    head = torch.eye(VOCABULARY)
    chosen, told = drawn(logits, limits, 1.0)
    scores = chosen_logprobs(logits, head, chosen, temperature=1.0, with_entropy=False, truncation=Truncation(**limits))
    torch.testing.assert_close(scores.logprobs, torch.tensor(told), rtol=0, atol=2e-5, check_dtype=False)


def test_a_token_that_newer_weights_would_leave_out_keeps_a_probability_and_a_gradient() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, -1.0]], requires_grad=True)
    scores = chosen_logprobs(
        logits, torch.eye(4), torch.tensor([3]), temperature=1.0, with_entropy=False, truncation=Truncation(top_k=2)
    )
    kept = torch.softmax(torch.tensor([3.0, 2.0, -1.0]), dim=-1)
    assert scores.logprobs.item() == pytest.approx(kept[2].log().item(), abs=1e-6)
    (slope,) = torch.autograd.grad(scores.logprobs.sum(), logits)
    expected = torch.tensor([[-kept[0].item(), -kept[1].item(), 0.0, 1 - kept[2].item()]])
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_what_is_not_a_number_stays_none(limits: dict[str, Any]) -> None:
    """A step that diverged is found by its loss, and skipped."""
    logits = torch.tensor([[float("nan"), 1.0, 2.0]], requires_grad=True)
    scores = chosen_logprobs(
        logits, torch.eye(3), torch.tensor([1]), temperature=1.0, with_entropy=False, truncation=Truncation(**limits)
    )
    assert scores.logprobs.isnan().all()
    scores.logprobs.sum().backward()
