"""Logprobs of given tokens by POST /generate with max_new_tokens 0, as SGLang answers it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.contract.engine import Engine, logprobs_of, tokens_of
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineRefused

PROMPT = [1, 2, 3, 4]


async def test_given_tokens_have_the_logprobs_that_they_were_sampled_with(engine: Engine, url: str) -> None:
    sampled = await engine.generate(PROMPT, max_new_tokens=24, temperature=1.0, ignore_eos=True)
    row = PROMPT + tokens_of(sampled)
    async with EngineClient(url, request_timeout_s=120.0) as client:
        scored = await client.score(row, temperature=1.0, request_id="score-1", weight_version="0")
    assert (scored.token_ids, scored.finish) == (tuple(row[1:]), "length")
    assert scored.weight_version == (await engine.get("/model_info"))[1]["weight_version"]
    assert scored.numbers[len(PROMPT) - 1 :] == pytest.approx(logprobs_of(sampled), abs=2e-3)
    assert all(number <= 1e-3 for number in scored.numbers)


async def test_a_long_row_is_scored_like_a_short_one(engine: Engine, url: str) -> None:
    row = [1 + (n * 5) % 9 for n in range(900)]
    async with EngineClient(url, request_timeout_s=120.0) as client:
        whole = await client.score(row, temperature=1.0, request_id="score-2", weight_version="0")
        begun = await client.score(row[:100], temperature=1.0, request_id="score-3", weight_version="0")
    assert len(whole.numbers) == 899
    assert whole.numbers[:99] == pytest.approx(begun.numbers, abs=2e-3)


async def test_tokens_that_the_model_does_not_have_are_refused(engine: Engine, url: str) -> None:
    """By the engine; or before it is asked, where it would not survive that, as SGLang does not."""
    info = (await engine.get("/model_info"))[1]
    config = json.loads((Path(info["model_path"]) / "config.json").read_text())
    vocabulary = None if "vocab_size" in info else config["vocab_size"]
    async with EngineClient(url, request_timeout_s=120.0, vocabulary=vocabulary) as client:
        with pytest.raises(EngineRefused, match="input_ids"):
            await client.score([1, 10**6], temperature=1.0, request_id="score-4", weight_version="0")
