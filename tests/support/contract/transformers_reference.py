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


def assert_logprobs(model: Any, prompt: list[int], answer: Answer) -> None:
    tokens = torch.tensor([prompt + tokens_of(answer)])
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(tokens).logits[0, :-1], dim=-1)
    expected = logprobs.gather(-1, tokens[0, 1:, None])[len(prompt) - 1 :, 0]
    assert logprobs_of(answer) == pytest.approx(expected.tolist(), abs=1e-4)
