"""Pauses, aborts and weight updates as SGLang documents them, each with requests under way."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.contract.engine import Answer, Engine, tokens_of

PROMPT = [1, 2, 3, 4]
COUNT = 800
"""So many tokens that a request is still under way when the test acts on it."""


def start(engine: Engine, number: int) -> asyncio.Task[Answer]:
    return asyncio.create_task(
        engine.generate([*PROMPT, number], rid=f"r{number}", max_new_tokens=COUNT, temperature=0, ignore_eos=True)
    )


async def start_held(engine: Engine, count: int) -> list[asyncio.Task[Answer]]:
    """Requests that the engine has taken: those that come in a pause it may keep at its door."""
    requests = [start(engine, number) for number in range(count)]
    await engine.until_held(count)
    return requests


@pytest.mark.parametrize("mode", ["in_place", pytest.param("retract", marks=pytest.mark.slow)])
async def test_a_pause_that_keeps_requests_changes_none_of_their_tokens(engine: Engine, mode: str) -> None:
    whole = await start(engine, 0)
    (request,) = await start_held(engine, 1)
    for _ in range(3):
        status, answer = await engine.post("/pause_generation", {"mode": mode})
        assert (status, answer["status"]) == (200, "ok")
        assert (await engine.post("/continue_generation", {}))[0] == 200
    assert tokens_of(await request) == tokens_of(whole)


async def test_a_pause_aborts_by_default_and_answers_with_the_tokens_so_far(engine: Engine) -> None:
    requests = await start_held(engine, 6)
    await engine.post("/pause_generation", {})
    for answer in await asyncio.gather(*requests):
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(tokens_of(answer)) == answer["meta_info"]["completion_tokens"] < COUNT


async def test_requests_that_come_during_a_pause_wait_for_its_end(engine: Engine) -> None:
    await engine.post("/pause_generation", {"mode": "abort"})
    request = start(engine, 1)
    done, _ = await asyncio.wait({request}, timeout=0.5)
    assert not done
    await engine.post("/continue_generation", {})
    assert (await request)["meta_info"]["finish_reason"]["type"] == "length"


async def test_abort_request_ends_the_one_it_names_and_nothing_without_a_name(engine: Engine) -> None:
    requests = await start_held(engine, 3)
    assert (await engine.post("/abort_request", {"rid": ""}))[0] == 200
    assert (await engine.post("/abort_request", {"rid": "r1"}))[0] == 200
    ends = [answer["meta_info"]["finish_reason"]["type"] for answer in await asyncio.gather(*requests)]
    assert ends == ["length", "abort", "length"]


async def test_abort_all_ends_everything(engine: Engine) -> None:
    requests = await start_held(engine, 4)
    await engine.post("/abort_request", {"abort_all": True})
    assert {answer["meta_info"]["finish_reason"]["type"] for answer in await asyncio.gather(*requests)} == {"abort"}


async def test_the_cache_is_not_flushed_under_requests(engine: Engine) -> None:
    (request,) = await start_held(engine, 1)
    await engine.post("/pause_generation", {"mode": "in_place"})
    assert (await engine.post("/flush_cache", {}))[0] == 400
    await engine.post("/continue_generation", {})
    await request
    assert (await engine.post("/flush_cache?timeout=60", {}))[0] == 200


async def test_an_update_names_its_version_in_the_info_and_in_every_answer_after_it(engine: Engine) -> None:
    _, info = await engine.get("/model_info")
    before = await engine.generate(PROMPT, max_new_tokens=8, temperature=0, ignore_eos=True)
    body = {"model_path": info["model_path"], "weight_version": "contract-1", "flush_cache": False}
    status, answer = await engine.post("/update_weights_from_disk", body)
    assert (status, answer["success"]) == (200, True)
    after = await engine.generate(PROMPT, max_new_tokens=8, temperature=0, ignore_eos=True)
    assert after["meta_info"]["weight_version"] == "contract-1"
    assert (await engine.get("/model_info"))[1]["weight_version"] == "contract-1"
    assert tokens_of(after) == tokens_of(before)


async def test_a_request_survives_an_update_in_a_pause_in_place(engine: Engine) -> None:
    _, info = await engine.get("/model_info")
    (request,) = await start_held(engine, 1)
    await engine.post("/pause_generation", {"mode": "in_place"})
    body = {"model_path": info["model_path"], "weight_version": "contract-2", "flush_cache": False}
    assert (await engine.post("/update_weights_from_disk", body))[0] == 200
    await engine.post("/continue_generation", {})
    answer = await request
    assert len(tokens_of(answer)) == COUNT
    assert answer["meta_info"]["weight_version"] == "contract-2"


async def test_an_update_that_fails_says_so_and_the_weights_stay(engine: Engine) -> None:
    _, info = await engine.get("/model_info")
    body = {"model_path": info["model_path"] + "-that-is-not-there", "weight_version": "contract-3"}
    status, answer = await engine.post("/update_weights_from_disk", body)
    assert (status, answer["success"]) == (400, False)
    assert (await engine.get("/model_info"))[1]["weight_version"] == info["weight_version"]
    assert len(tokens_of(await start(engine, 1))) == COUNT


async def test_the_version_can_be_renamed_without_weights(engine: Engine) -> None:
    status, answer = await engine.post("/update_weight_version", {"new_version": "contract-4"})
    assert (status, answer["success"], answer["new_version"]) == (200, True, "contract-4")
    assert (await start(engine, 1))["meta_info"]["weight_version"] == "contract-4"


async def test_it_says_that_it_is_well_and_what_it_serves(engine: Engine) -> None:
    assert (await engine.get("/health"))[0] == 200
    assert (await engine.get("/health_generate"))[0] == 200
    assert (await engine.get("/model_info"))[1]["model_path"]
    assert (await engine.get("/server_info"))[0] == 200
