"""The built-in engine over HTTP, as a real process: exact tokens, pauses, weight updates, refusals."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support.polling import eventually, patiently, within
from tests.support.rollout.engine_process import EngineProcess
from trimtab.fabric.wire.spans import total_length
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineOverloaded, EngineRefused, Generated, SamplingSettings, WeightRun
from trimtab.rollout.policy.sampler import Completion, PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate, label_of
from trimtab.weights.store.position import Position

PROMPTS = [[1, 2, 3], [4, 10, 5, 10, 6, 11], [9], [7, 10, 7, 10, 7, 11, 2, 3]]
GREEDY = SamplingSettings(max_new_tokens=12, temperature=0.0)
LONG = SamplingSettings(max_new_tokens=50, temperature=1.0, seed=5)


@pytest.fixture
async def http(engine_process: EngineProcess, engine: EngineClient) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(base_url=engine_process.url) as session:
        yield session


async def running(http: aiohttp.ClientSession) -> int:
    async with http.get("/v1/loads") as response:
        load = (await response.json())["loads"][0]
        return int(load["num_running_reqs"]) + int(load["num_waiting_reqs"])


def greedy_reference(model: Path, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """What transformers itself generates, and the logprob of each token from one plain forward pass."""
    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        inputs = torch.tensor([list(prompt)])
        output = reference.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        logprobs = torch.log_softmax(reference(output).logits[0, :-1], dim=-1)
    tokens = output[0, len(prompt) :]
    return tokens.tolist(), logprobs[len(prompt) - 1 :].gather(-1, tokens[:, None])[:, 0].tolist()


async def test_greedy_is_transformers_token_for_token(engine: EngineClient, models: Path) -> None:
    answers = await asyncio.gather(
        *(engine.generate(prompt, GREEDY, request_id=f"g{n}", weight_version="0") for n, prompt in enumerate(PROMPTS))
    )
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        tokens, logprobs = greedy_reference(models / "0", prompt, 12)
        assert list(answer.token_ids) == tokens
        assert list(answer.logprobs) == pytest.approx(logprobs, abs=1e-4)
        assert (answer.finish, answer.weight_version) == ("length", "0")


async def test_the_same_seed_gives_the_same_tokens_whatever_it_is_batched_with(engine: EngineClient) -> None:
    async def one(prompt: Sequence[int], seed: int) -> Generated:
        settings = SamplingSettings(max_new_tokens=16, temperature=1.0, seed=seed)
        return await engine.generate(prompt, settings, request_id=f"s{seed}", weight_version="0")

    alone = [await one(prompt, seed) for seed, prompt in enumerate(PROMPTS)]
    together = await asyncio.gather(*(one(prompt, seed) for seed, prompt in enumerate(PROMPTS)))
    assert [answer.token_ids for answer in alone] == [answer.token_ids for answer in together]
    for lonely, crowded in zip(alone, together, strict=True):
        assert lonely.logprobs == pytest.approx(crowded.logprobs, abs=1e-4)
    others = await asyncio.gather(*(one(PROMPTS[0], seed) for seed in range(100, 104)))
    assert len({answer.token_ids for answer in others}) > 1


async def test_paused_in_place_it_goes_on_where_it_was(engine: EngineClient) -> None:
    whole = await engine.generate(PROMPTS[1], LONG, request_id="whole", weight_version="0")
    request = asyncio.create_task(engine.generate(PROMPTS[1], LONG, request_id="paused", weight_version="0"))
    await asyncio.sleep(0)
    await engine.pause("in_place", timeout_s=60.0)
    await engine.resume(timeout_s=60.0)
    assert (await request).token_ids == whole.token_ids


async def test_retracted_it_is_computed_again_and_gives_the_same(engine: EngineClient) -> None:
    whole = await engine.generate(PROMPTS[1], LONG, request_id="whole", weight_version="0")
    request = asyncio.create_task(engine.generate(PROMPTS[1], LONG, request_id="retracted", weight_version="0"))
    for _ in range(3):
        await engine.pause("retract", timeout_s=60.0)
        await engine.resume(timeout_s=60.0)
    answer = await request
    assert answer.token_ids == whole.token_ids
    assert answer.logprobs == pytest.approx(whole.logprobs, abs=1e-4)


async def test_requests_wait_while_it_is_paused(engine: EngineClient, http: aiohttp.ClientSession) -> None:
    await engine.pause("abort", timeout_s=60.0)
    request = asyncio.create_task(engine.generate(PROMPTS[0], GREEDY, request_id="waits", weight_version="0"))

    async def queued() -> bool:
        return await running(http) == 1

    await eventually(queued, timeout_s=10.0)
    done, _ = await asyncio.wait({request}, timeout=0.2)
    assert not done
    await engine.resume(timeout_s=60.0)
    assert (await within(request, 10.0)).finish == "length"


async def test_pausing_with_abort_answers_with_what_there_is(engine: EngineClient, http: aiohttp.ClientSession) -> None:
    await engine.pause("in_place", timeout_s=60.0)
    requests = [
        asyncio.create_task(engine.generate(PROMPTS[n % 4], LONG, request_id=f"a{n}", weight_version="0"))
        for n in range(12)
    ]

    async def all_held() -> bool:
        return await running(http) == 12

    await eventually(all_held, timeout_s=10.0)
    await engine.pause("abort", timeout_s=60.0)
    answers = await within(asyncio.gather(*requests), 10.0)
    assert {answer.finish for answer in answers} == {"abort"}
    assert await running(http) == 0


async def test_abort_request_ends_one_and_leaves_the_others(engine: EngineClient, http: aiohttp.ClientSession) -> None:
    await engine.pause("in_place", timeout_s=60.0)
    requests = {
        n: asyncio.create_task(engine.generate(PROMPTS[n], GREEDY, request_id=f"one{n}", weight_version="0"))
        for n in range(3)
    }

    async def all_held() -> bool:
        return await running(http) == 3

    await eventually(all_held, timeout_s=10.0)
    async with http.post("/abort_request", json={"rid": "one1"}) as response:
        assert response.status == 200
    assert (await within(requests[1], 10.0)).finish == "abort"
    async with http.post("/abort_request", json={}) as response:  # no id and not all: ignored, as in SGLang
        assert response.status == 200
    await engine.resume(timeout_s=60.0)
    assert (await requests[0]).finish == (await requests[2]).finish == "length"


async def test_a_client_that_hangs_up_takes_its_request_with_it(
    engine: EngineClient, http: aiohttp.ClientSession
) -> None:
    await engine.pause("in_place", timeout_s=60.0)
    request = asyncio.create_task(engine.generate(PROMPTS[0], LONG, request_id="gone", weight_version="0"))

    async def held() -> bool:
        return await running(http) == 1

    async def empty() -> bool:
        return await running(http) == 0

    await eventually(held, timeout_s=10.0)
    request.cancel()
    await eventually(empty, timeout_s=10.0)


async def test_new_weights_are_served_and_named(engine: EngineClient, models: Path) -> None:
    await engine.update_weights_from_disk(models / "1", weight_version="1", timeout_s=60.0)
    answer = await engine.generate(PROMPTS[1], GREEDY, request_id="new", weight_version="0")
    assert answer.weight_version == "1"
    assert list(answer.token_ids) == greedy_reference(models / "1", PROMPTS[1], 12)[0]


async def test_every_token_across_updates_has_the_version_that_sampled_it(
    engine: EngineClient, engine_process: EngineProcess, models: Path
) -> None:
    """Logprobs tell: each span's tokens are recomputed with the weights that its version names."""
    gate = VersionGate()
    sampler = PolicySampler(engine, gate)
    settings = SamplingSettings(max_new_tokens=48, temperature=1.0, seed=3)
    completions: list[tuple[list[int], Completion]] = []
    all_given = asyncio.Event()

    async def talk(line: int) -> None:
        """One request after another for as long as there are weights to come."""
        prompt = PROMPTS[line % 4]
        while not all_given.is_set():
            name = f"span{line}-{len(completions)}"
            completions.append((prompt, await sampler.complete(prompt, settings, request_id=name, deadline_s=60.0)))

    lines = [asyncio.create_task(talk(line)) for line in range(12)]
    for version in range(1, 7):
        await eventually(lambda: gate.in_flight > 0, timeout_s=10.0, interval_s=0.005)
        gate.close()
        while gate.in_flight:  # a request may reach the engine after the pause did
            await engine.pause("abort", timeout_s=60.0)
            try:
                await gate.wait_empty(timeout_s=0.2)
            except TimeoutError:
                await engine.resume(timeout_s=60.0)
        given = Position(epoch=1, version=version)
        await engine.update_weights_from_disk(models / str(version % 3), weight_version=label_of(given), timeout_s=60.0)
        await engine.resume(timeout_s=60.0)
        gate.settle(given)
        gate.open()
    all_given.set()
    await asyncio.gather(*lines)
    reference = {
        seed: AutoModelForCausalLM.from_pretrained(models / str(seed), dtype=torch.float32) for seed in range(3)
    }
    crossed = [one for one in completions if len(one[1].spans) > 1]
    others = [one for one in completions if len(one[1].spans) == 1]
    assert crossed
    for prompt, completion in crossed + others[:: max(1, len(others) // 12)]:
        assert len(completion.token_ids) == total_length(completion.spans) == 48
        tokens = torch.tensor([prompt + list(completion.token_ids)])
        position = 0
        for span in completion.spans:
            assert span.version is not None
            with torch.inference_mode():
                logprobs = torch.log_softmax(reference[span.version % 3](tokens).logits[0], dim=-1)
            for index in range(position, position + span.length):
                at = len(prompt) + index
                expected = logprobs[at - 1, tokens[0, at]].item()
                assert completion.logprobs[index] == pytest.approx(expected, abs=1e-3)
            position += span.length
    assert not sampler.lost.is_set()


async def paused_in_the_middle(engine: EngineClient) -> asyncio.Task[Generated]:
    """A request that has begun and not ended, in an engine that waits. One that was too quick for us is repeated."""

    async def running() -> bool:
        return (await engine.load(timeout_s=60.0)).running == 1

    async with patiently(60.0):
        while True:
            request = asyncio.create_task(engine.generate(PROMPTS[0], LONG, request_id="r", weight_version="0"))
            while not (request.done() or await running()):
                pass
            await engine.pause("in_place", timeout_s=60.0)
            if await running():
                return request
            await engine.resume(timeout_s=60.0)
            await request


async def test_an_update_in_place_in_the_middle_of_a_request_is_told_token_by_token(
    engine: EngineClient, models: Path
) -> None:
    request = await paused_in_the_middle(engine)
    await engine.update_weights_from_disk(models / "1", weight_version="9", timeout_s=60.0)
    await engine.resume(timeout_s=60.0)
    answer = await request
    assert (answer.weight_version, len(answer.token_ids)) == ("9", 50)
    assert answer.weight_runs is not None
    before = answer.weight_runs[0].length
    assert answer.weight_runs == (
        WeightRun(weight_version="0", length=before),
        WeightRun(weight_version="9", length=50 - before),
    )


def damaged(kind: str, source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if kind == "missing tensor":
        del tensors["model.norm.weight"]
    elif kind == "other shape":
        tensors["model.norm.weight"] = torch.ones(3)
    elif kind == "unknown tensor":
        tensors["model.surprise"] = torch.ones(3)
    for name in tensors:
        tensors[name] = tensors[name] + 1.0
    save_file(tensors, path)
    if kind == "cut off":
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == "garbage":
        path.write_bytes(b"not a safetensors file")
    elif kind == "no file":
        path.unlink()
    return folder


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing tensor", "lacks 1 tensors"),
        ("other shape", "model.norm.weight"),
        ("unknown tensor", "model.surprise"),
        ("cut off", "not a whole safetensors file"),
        ("garbage", "not a whole safetensors file"),
        ("no file", "lacks"),
    ],
)
async def test_weights_that_do_not_fit_are_refused_and_change_nothing(
    engine: EngineClient, models: Path, tmp_path: Path, kind: str, message: str
) -> None:
    before = await engine.generate(PROMPTS[1], GREEDY, request_id="before", weight_version="0")
    with pytest.raises(EngineRefused, match=message):
        await engine.update_weights_from_disk(
            damaged(kind, models / "0", tmp_path / "bad"), weight_version="5", timeout_s=10.0
        )
    after = await engine.generate(PROMPTS[1], GREEDY, request_id="after", weight_version="0")
    assert after.token_ids == before.token_ids
    assert after.logprobs == pytest.approx(before.logprobs, abs=1e-5)
    assert after.weight_version == "0"


async def test_a_full_queue_is_429_with_the_reason(engine: EngineClient) -> None:
    await engine.pause("in_place", timeout_s=60.0)
    requests = [
        asyncio.create_task(engine.generate([1], GREEDY, request_id=f"q{n}", weight_version="0")) for n in range(80)
    ]
    await eventually(lambda: sum(request.done() for request in requests) == 80 - 64, timeout_s=60.0)
    await engine.resume(timeout_s=60.0)
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, EngineOverloaded)]
    assert len(refused) == 80 - 64
    assert "the limit is 64" in str(refused[0])
    assert sum(isinstance(outcome, Generated) for outcome in outcomes) == 64


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": ["x"]}, "input_ids.0"),
        ({"input_ids": [99], "sampling_params": {"max_new_tokens": 1}}, "input_ids must lie in [0, 15)"),
        ({"input_ids": [-1], "sampling_params": {"max_new_tokens": 1}}, "input_ids must lie in [0, 15)"),
        ({"input_ids": [1] * 60}, "max_new_tokens make 188 tokens, the model takes 64"),
        ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"input_ids": [1], "sampling_params": {"top_p": 0}}, "sampling_params.top_p"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"input_ids": [1], "sampling_params": {"min_p": 1.5}}, "sampling_params.min_p"),
        ({"input_ids": [1], "sampling_params": {"stop": ""}}, "sampling_params.stop.0"),
        ({"input_ids": [[1], 2]}, "one list of tokens, or a list of such lists"),
        ({"input_ids": [[1], []]}, "must not be empty"),
        ({"input_ids": [1], "text": "1"}, "either input_ids or text"),
    ],
    ids=str,
)
async def test_bad_requests_are_400_and_name_the_field(
    http: aiohttp.ClientSession, body: dict[str, Any], named: str
) -> None:
    async with http.post("/generate", json=body) as response:
        assert response.status == 400
        assert named in (await response.json())["error"]["message"]


async def test_what_is_not_json_is_400(http: aiohttp.ClientSession) -> None:
    async with http.post("/generate", data=b"{") as response:
        assert response.status == 400


async def test_model_info_and_health(http: aiohttp.ClientSession) -> None:
    async with http.get("/model_info") as response:
        info = await response.json()
    assert (info["weight_version"], info["max_model_len"], info["vocab_size"]) == ("0", 64, 15)
    async with http.get("/health") as response:
        assert response.status == 200


async def test_sigterm_answers_what_it_holds_and_ends(
    engine: EngineClient, engine_process: EngineProcess, http: aiohttp.ClientSession
) -> None:
    await engine.pause("in_place", timeout_s=60.0)
    request = asyncio.create_task(engine.generate([1], GREEDY, request_id="last", weight_version="0"))

    async def held() -> bool:
        return await running(http) == 1

    await eventually(held, timeout_s=10.0)
    code = await asyncio.to_thread(engine_process.terminate)
    engine_process.start()
    assert (await request).finish == "abort"
    assert code == 0
    await engine_process.serves()
