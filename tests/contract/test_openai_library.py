"""OpenAI's own client library against the engine's /v1 surface: what it says there is what /generate says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.support.contract.engine import Engine, logprobs_of

PROMPT = [1, 2, 3, 4]


@pytest.fixture
async def client(engine: Engine, url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:
        yield client


@pytest.fixture
async def model(client: openai.AsyncOpenAI) -> str:
    (card,) = [card async for card in client.models.list()]
    return card.id


async def test_greedy_completions_are_those_of_generate(engine: Engine, client: openai.AsyncOpenAI, model: str) -> None:
    wanted = await engine.generate(PROMPT, max_new_tokens=6, temperature=0.0)
    completion = await client.completions.create(model=model, prompt=PROMPT, max_tokens=6, temperature=0.0, logprobs=1)
    (choice,) = completion.choices
    assert choice.text == wanted["text"]
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == pytest.approx(logprobs_of(wanted), abs=1e-3)
    assert choice.finish_reason == wanted["meta_info"]["finish_reason"]["type"]
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(PROMPT)
    assert completion.usage.completion_tokens == wanted["meta_info"]["completion_tokens"]


async def test_text_is_a_prompt_too_and_a_stop_ends_the_answer_before_it(
    client: openai.AsyncOpenAI, model: str
) -> None:
    whole = await client.completions.create(model=model, prompt="1,2,3>", max_tokens=20, temperature=0.0)
    text = whole.choices[0].text
    stop = text[len(text) // 2]
    stopped = await client.completions.create(model=model, prompt="1,2,3>", max_tokens=20, temperature=0.0, stop=stop)
    assert stopped.choices[0].text == text.partition(stop)[0]
    assert stopped.choices[0].finish_reason == "stop"


async def test_a_bad_request_is_the_library_s_own_error(client: openai.AsyncOpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError):
        await client.completions.create(model=model, prompt=PROMPT, max_tokens=-1)
