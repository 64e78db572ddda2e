"""POST /generate as SGLang documents it: what an answer holds, what ends it, what repeats it, what is refused."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from tests.support.contract.engine import Engine, logprobs_of, tokens_of

PROMPT = [1, 2, 3, 4]


async def test_an_answer_has_its_tokens_with_logprobs_and_says_why_it_ended(engine: Engine) -> None:
    answer = await engine.generate(PROMPT, rid="contract-shape", max_new_tokens=6, ignore_eos=True)
    meta = answer["meta_info"]
    assert meta["id"] == "contract-shape"
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (4, 6)
    assert answer["output_ids"] == tokens_of(answer)
    assert len(tokens_of(answer)) == 6
    assert all(-math.inf < logprob <= 0.0 for logprob in logprobs_of(answer))
    assert isinstance(answer["text"], str)
    assert isinstance(meta["cached_tokens"], int)
    assert meta["weight_version"] == (await engine.get("/model_info"))[1]["weight_version"]


async def test_without_return_logprob_the_tokens_still_come(engine: Engine) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    status, answer = await engine.post("/generate", body)
    assert (status, len(answer["output_ids"])) == (200, 3)
    assert "output_token_logprobs" not in answer["meta_info"]


async def test_several_prompts_are_answered_in_their_order(engine: Engine) -> None:
    prompts = [[1], [2, 3], [4, 5, 6]]
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}}
    status, answers = await engine.post("/generate", body)
    assert status == 200
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [1, 2, 3]
    assert len({answer["meta_info"]["id"] for answer in answers}) == 3
    alone = [await engine.generate(prompt, max_new_tokens=2, temperature=0, ignore_eos=True) for prompt in prompts]
    assert [answer["output_ids"] for answer in answers] == [answer["output_ids"] for answer in alone]


async def test_temperature_zero_is_deterministic_alone_and_among_others(engine: Engine) -> None:
    alone = await engine.generate(PROMPT, max_new_tokens=12, temperature=0, ignore_eos=True)
    crowd = await asyncio.gather(
        engine.generate(PROMPT, max_new_tokens=12, temperature=0, ignore_eos=True),
        *(engine.generate([n, n + 1], max_new_tokens=20, ignore_eos=True) for n in range(1, 7)),
    )
    assert tokens_of(crowd[0]) == tokens_of(alone)
    assert logprobs_of(crowd[0]) == pytest.approx(logprobs_of(alone), abs=1e-3)


async def test_a_stop_token_ends_it_and_is_the_last_token(engine: Engine) -> None:
    free = await engine.generate(PROMPT, max_new_tokens=12, temperature=0, ignore_eos=True)
    stop = tokens_of(free)[5]
    until = tokens_of(free).index(stop) + 1
    # Not with ignore_eos: SGLang then passes over every token that would end it.
    answer = await engine.generate(PROMPT, max_new_tokens=12, temperature=0, stop_token_ids=[stop])
    assert tokens_of(answer) == tokens_of(free)[:until]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


async def test_a_stop_string_ends_it_and_is_not_in_the_text(engine: Engine) -> None:
    free = await engine.generate(PROMPT, max_new_tokens=12, temperature=0, ignore_eos=True)
    stop = free["text"][3:5]
    answer = await engine.generate(PROMPT, max_new_tokens=12, temperature=0, ignore_eos=True, stop=stop)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert answer["text"] == free["text"].partition(stop)[0]
    assert len(tokens_of(answer)) < 12


async def test_the_same_seed_gives_the_same_tokens_whatever_else_runs(engine: Engine) -> None:
    if not await engine.repeats_by_seed():
        pytest.skip("this SGLang runs without --enable-deterministic-inference, which needs a GPU")

    async def one(seed: int) -> list[int]:
        answer = await engine.generate(PROMPT, max_new_tokens=16, sampling_seed=seed, ignore_eos=True)
        return tokens_of(answer)

    alone = [await one(seed) for seed in range(6)]
    assert await asyncio.gather(*(one(seed) for seed in range(6))) == alone
    assert len(set(map(tuple, alone))) > 1


@pytest.mark.parametrize("limit", [{"top_k": 1}, {"min_p": 1.0}], ids=str)
async def test_where_one_token_is_kept_it_is_the_likeliest(engine: Engine, limit: dict[str, Any]) -> None:
    greedy = await engine.generate(PROMPT, max_new_tokens=8, temperature=0, ignore_eos=True)
    drawn = await engine.generate(PROMPT, max_new_tokens=8, temperature=1, ignore_eos=True, **limit)
    assert tokens_of(drawn) == tokens_of(greedy)


async def test_the_first_answer_of_a_prompt_is_reused_by_the_next(engine: Engine) -> None:
    prompt = [1 + n % 9 for n in range(40)]
    await engine.generate(prompt, max_new_tokens=2, ignore_eos=True)
    again = await engine.generate(prompt, max_new_tokens=2, ignore_eos=True)
    assert again["meta_info"]["cached_tokens"] > 0
    assert (await engine.get("/flush_cache"))[0] == 200
    flushed = await engine.generate(prompt, max_new_tokens=2, ignore_eos=True)
    assert flushed["meta_info"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"sampling_params": {"max_new_tokens": 1}},
        {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "temperature": -1.0}},
        {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "top_p": 0.0}},
    ],
    ids=["no prompt", "temperature", "top_p"],
)
async def test_what_is_wrong_is_a_400_with_a_message(engine: Engine, body: dict[str, Any]) -> None:
    status, answer = await engine.post("/generate", body)
    assert status == 400
    assert answer["error"]["message"]


async def test_a_parameter_that_is_not_known_is_not_passed_over(engine: Engine) -> None:
    status, _ = await engine.post("/generate", {"input_ids": [1], "sampling_params": {"no_such_parameter": 1}})
    assert status >= 400
