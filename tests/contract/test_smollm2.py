"""A real model: SmolLM2-135M over HTTP against transformers, token for token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from examples.pretrained_model import SmolLM2, load
from tests.support.contract.engine import Engine, tokens_of
from tests.support.contract.transformers_reference import assert_greedy, assert_logprobs
from tests.support.rollout.engine_process import EngineProcess

TEXTS = (
    "The capital of France is",
    "Water boils faster in the mountains because the air",
    "def fibonacci(n):",
    "My grandmother always used to say that a loaf of bread",
)
COUNT = 24


@pytest.fixture(scope="module")
def smollm2() -> SmolLM2:
    return load()


@pytest.fixture(scope="module")
def process(smollm2: SmolLM2, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("smollm2")
    smollm2.model.save_pretrained(folder / "model")
    smollm2.tokenizer.save(str(folder / "model" / "tokenizer.json"))
    process = EngineProcess(folder / "model", folder)
    process.start()
    yield process
    process.kill()


@pytest.fixture
async def real(process: EngineProcess) -> AsyncIterator[Engine]:
    async with aiohttp.ClientSession(base_url=process.url, timeout=aiohttp.ClientTimeout(total=200.0)) as session:
        engine = Engine(session, ended=process.ended)
        await engine.wait_healthy()
        yield engine


@pytest.mark.slow
async def test_greedy_is_transformers_token_for_token_and_logprobs_agree(real: Engine, smollm2: SmolLM2) -> None:
    prompts = [list(smollm2.tokenizer.encode(text).ids) for text in TEXTS]
    answers = await asyncio.gather(*(real.generate(prompt, max_new_tokens=COUNT, temperature=0) for prompt in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(tokens_of(answer)) == COUNT
        assert_greedy(smollm2.model, prompt, answer)
        assert_logprobs(smollm2.model, prompt, answer)
        assert answer["text"] == smollm2.tokenizer.decode(tokens_of(answer))


@pytest.mark.slow
async def test_a_sampled_group_shares_its_prompt_and_has_exact_logprobs(real: Engine, smollm2: SmolLM2) -> None:
    # Long enough to be worth waiting for: short ones are computed for each where they arrive at the same time.
    prompt = list(smollm2.tokenizer.encode(" ".join(TEXTS * 3)).ids)
    answers = await asyncio.gather(
        *(real.generate(prompt, max_new_tokens=COUNT, sampling_seed=seed) for seed in range(8))
    )
    cached = sorted(answer["meta_info"]["cached_tokens"] for answer in answers)
    assert cached[1:] == [len(prompt) - 1] * 7
    assert_logprobs(smollm2.model, prompt, *answers)
