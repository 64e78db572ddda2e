"""What transformers says to the same prompt, to hold an engine against."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.contract.engine import Answer, logprobs_of, tokens_of


def greedy(model: Any, prompt: list[int], *, count: int) -> list[int]:
    with torch.inference_mode():
        inputs = torch.tensor([prompt])
        output = model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
    return [int(token) for token in output[0, len(prompt) :]]


def assert_greedy(model: Any, prompt: list[int], answer: Answer) -> None:
    """Each token is the likeliest one after those before it, which makes it what `greedy` gives. One pass tells, where
    a model of some size would take its time to generate."""
    tokens = tokens_of(answer)
    assert _logprobs(model, prompt, [tokens])[0].argmax(dim=-1).tolist() == tokens


def assert_logprobs(model: Any, prompt: list[int], *answers: Answer) -> None:
    said = [tokens_of(answer) for answer in answers]
    for tokens, logprobs, answer in zip(said, _logprobs(model, prompt, said), answers, strict=True):
        expected = logprobs[: len(tokens)].gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        assert logprobs_of(answer) == pytest.approx(expected.tolist(), abs=1e-4)


def _logprobs(model: Any, prompt: list[int], answers: list[list[int]]) -> torch.Tensor:
    """(answers, places of the longest, vocabulary). The prompt, which all share, is computed once."""
    longest = max(map(len, answers))
    # What is filled up is after the end of an answer, where nothing before it looks.
    ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in answers])
    with torch.inference_mode():
        asked = model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
        logits = asked.logits.expand(len(answers), -1, -1)
        if longest > 1:
            cache = asked.past_key_values
            cache.batch_repeat_interleave(len(answers))
            logits = torch.cat([logits, model(ids[:, :-1], past_key_values=cache).logits], dim=1)
        return torch.log_softmax(logits, dim=-1)
