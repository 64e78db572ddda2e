"""SGLang's logprobs are of the whole distribution; what reaches a trainer is of the one that was drawn from."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from trimtab.rollout.engines import responses
from trimtab.rollout.engines.builtin.generation import SamplingParams
from trimtab.rollout.engines.builtin.sampling import sample
from trimtab.rollout.engines.contract import EngineError, SamplingSettings
from trimtab.rollout.engines.kept_logprobs import likeliest_needed


def settings(**changes: Any) -> SamplingSettings:
    return SamplingSettings(max_new_tokens=8, **changes)


def told(tokens: list[int], whole: torch.Tensor, *, likeliest: int) -> dict[str, Any]:
    """As SGLang answers: logprobs of all tokens at the temperature, and those of the likeliest."""
    top = whole.topk(likeliest, dim=-1)
    meta = {
        "finish_reason": {"type": "stop"},
        "weight_version": "0",
        "output_token_logprobs": [[whole[row, token].item(), token, None] for row, token in enumerate(tokens)],
        "output_top_logprobs": [
            [[value, token, None] for value, token in zip(values, ids, strict=True)]
            for values, ids in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ],
    }
    return {"meta_info": meta}


@pytest.mark.parametrize(
    "limits",
    [
        {"top_k": 5},
        {"top_k": 1},
        {"top_k": 12, "top_p": 0.6},
        {"top_k": 12, "top_p": 0.6, "temperature": 1.7},
        {"top_k": 12, "min_p": 0.3, "temperature": 0.7},
        {"top_k": 64, "top_p": 0.01},
    ],
    ids=str,
)
def test_they_are_those_that_the_built_in_engine_tells(limits: dict[str, Any]) -> None:
    """Which draws from the same distribution and says with which probability."""
    logits = torch.randn(200, 80, generator=torch.Generator().manual_seed(0))
    chance = random.Random(0)
    params = SamplingParams(**limits)
    tokens, expected = sample(logits, [params] * 200, [chance.random() for _ in range(200)])
    asked = settings(**limits)
    likeliest = likeliest_needed(asked)
    assert likeliest == limits["top_k"]
    whole = torch.log_softmax(logits / params.temperature, dim=-1)
    part = responses.generated(told(tokens, whole, likeliest=likeliest), truncated=asked)
    assert part.logprobs == pytest.approx(expected, abs=1e-5)
    if limits["top_k"] > 1:
        assert part.logprobs != pytest.approx([whole[row, token].item() for row, token in enumerate(tokens)], abs=1e-2)


@pytest.mark.parametrize(
    "limits", [{}, {"top_p": 0.9}, {"top_k": 65}, {"top_k": 5, "temperature": 0.0}, {"min_p": 0.1}], ids=str
)
def test_where_nothing_or_too_much_is_kept_they_stay_as_they_are(limits: dict[str, Any]) -> None:
    assert likeliest_needed(settings(**limits)) == 0


def test_a_token_that_rounding_puts_beyond_the_edge_was_kept_all_the_same() -> None:
    whole = torch.log_softmax(torch.tensor([[1.0, 0.5, 0.4, -3.0]]), dim=-1)
    answer = told([3], whole, likeliest=2)
    (logprob,) = responses.generated(answer, truncated=settings(top_k=2)).logprobs
    kept = torch.log_softmax(torch.tensor([1.0, 0.5, -3.0]), dim=-1)
    assert logprob == pytest.approx(kept[2].item(), abs=1e-5)


def test_an_engine_that_does_not_tell_the_likeliest_is_an_error_and_not_a_wrong_logprob() -> None:
    whole = torch.log_softmax(torch.randn(1, 8), dim=-1)
    several: tuple[list[Any] | None, ...] = (None, [], [[]])
    for missing in several:
        answer = told([1], whole, likeliest=2)
        answer["meta_info"]["output_top_logprobs"] = missing
        with pytest.raises(EngineError, match="/generate"):
            responses.generated(answer, truncated=settings(top_k=2))
