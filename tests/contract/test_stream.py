"""POST /generate with `stream`: the same answer, in parts that come while it is sampled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.contract.engine import Engine, Gathered, logprobs_of, tokens_of

PROMPT = [1, 2, 3, 4]
LONG = 600
_SURE = 8


async def test_the_parts_of_a_stream_are_the_answer(engine: Engine) -> None:
    whole = await engine.generate(PROMPT, max_new_tokens=24, temperature=0, ignore_eos=True)
    gathered = Gathered()
    async for part in engine.stream(PROMPT, rid="s", max_new_tokens=24, temperature=0, ignore_eos=True):
        assert part["meta_info"]["id"] == "s"
        assert part["meta_info"]["weight_version"] == whole["meta_info"]["weight_version"]
        gathered.add(part)
    assert gathered.tokens == tokens_of(whole)
    assert gathered.logprobs == pytest.approx(logprobs_of(whole), abs=1e-3)
    assert gathered.finish == whole["meta_info"]["finish_reason"] == {"type": "length", "length": 24}
    assert gathered.parts > 1


async def test_the_token_that_ends_a_stream_comes_with_its_end(engine: Engine) -> None:
    free = await engine.generate(PROMPT, max_new_tokens=12, temperature=0, ignore_eos=True)
    stop = tokens_of(free)[5]
    gathered = Gathered()
    async for part in engine.stream(PROMPT, max_new_tokens=12, temperature=0, stop_token_ids=[stop]):
        assert stop not in gathered.tokens
        gathered.add(part)
    assert gathered.tokens == tokens_of(free)[: tokens_of(free).index(stop) + 1]
    assert gathered.finish == {"type": "stop", "matched": stop}


async def test_tokens_come_while_the_rest_is_still_to_be_sampled(engine: Engine) -> None:
    gathered = Gathered()
    async for part in engine.stream(PROMPT, max_new_tokens=LONG, ignore_eos=True):
        if not gathered.parts:
            # Nothing is sampled while it is paused: what was said before came before the end.
            assert (await engine.post("/pause_generation", {"mode": "in_place"}))[0] == 200
            assert part["meta_info"]["finish_reason"] is None
            assert await engine.held() == 1
            await engine.post("/continue_generation", {})
        gathered.add(part)
    assert gathered.finish == {"type": "length", "length": LONG}
    assert len(gathered.tokens) == LONG


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_is_a_gap_in_the_stream_and_nothing_else(engine: Engine, mode: str) -> None:
    whole = await engine.generate(PROMPT, max_new_tokens=LONG, temperature=0, ignore_eos=True)
    gathered = Gathered()
    async for part in engine.stream(PROMPT, max_new_tokens=LONG, temperature=0, ignore_eos=True):
        if not gathered.parts:
            await engine.post("/pause_generation", {"mode": mode})
            await engine.post("/continue_generation", {})
        gathered.add(part)
    assert len(gathered.tokens) == LONG
    # What is computed again may be rounded otherwise, and then another token is the likeliest.
    assert gathered.tokens[:32] == tokens_of(whole)[:32]


async def test_an_abort_ends_the_stream_with_what_there_is(engine: Engine) -> None:
    gathered = Gathered()
    async for part in engine.stream(PROMPT, rid="aborted", max_new_tokens=LONG, ignore_eos=True):
        if not gathered.parts:
            await engine.post("/abort_request", {"rid": "aborted"})
        gathered.add(part)
    assert gathered.finish is not None
    assert gathered.finish["type"] == "abort"
    assert 0 < len(gathered.tokens) < LONG


async def test_who_leaves_a_stream_takes_the_request_with_him(engine: Engine) -> None:
    stream = engine.stream(PROMPT, max_new_tokens=LONG, ignore_eos=True)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await engine.until_held(0)


async def test_streams_side_by_side_are_each_their_own(engine: Engine) -> None:
    async def one(number: int) -> list[int]:
        gathered = Gathered()
        sampling: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}
        async for part in engine.stream([number + 1, number + 2], rid=f"side{number}", **sampling):
            assert part["meta_info"]["id"] == f"side{number}"
            gathered.add(part)
        return gathered.tokens

    alone = [await one(number) for number in range(4)]
    together = await asyncio.gather(*(one(number) for number in range(4)))
    assert [len(tokens) for tokens in together] == [40] * 4
    # An engine may add up in another order for several: of two words that are as likely it then takes the other, later.
    assert [tokens[:_SURE] for tokens in together] == [tokens[:_SURE] for tokens in alone]
    assert len({tuple(tokens[:_SURE]) for tokens in alone}) > 1
