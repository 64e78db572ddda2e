"""Which of a policy's engines a request goes to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from trimtab.fabric.backoff import FullJitter
from trimtab.rollout.engines.contract import (
    EngineError,
    EngineLoad,
    EngineUnavailable,
    Generated,
    Progress,
    SamplingSettings,
)
from trimtab.rollout.policy.sampler import PolicySampler, SpreadSampler
from trimtab.rollout.policy.spread import PrefixHomes, chosen
from trimtab.rollout.policy.version_gate import VersionGate, label_of
from trimtab.weights.store.position import Position

HASTY = FullJitter(base_s=0.0001, cap_s=0.001)
SETTINGS = SamplingSettings(max_new_tokens=4)
LONG = list(range(100))


@pytest.mark.parametrize(
    ("home", "loads", "sent", "usable", "expected"),
    [
        pytest.param(None, [3, 1, 2], [0, 0, 0], [True, True, True], 1, id="the idlest"),
        pytest.param(None, [1, 1, 1], [5, 3, 4], [True, True, True], 1, id="of equals the one with fewest so far"),
        pytest.param(2, [3, 1, 2], [0, 0, 0], [True, True, True], 2, id="where its beginning is"),
        pytest.param(0, [5, 1, 2], [0, 0, 0], [True, True, True], 0, id="also when that is a little busier"),
        pytest.param(0, [6, 1, 2], [0, 0, 0], [True, True, True], 1, id="not when that is much busier"),
        pytest.param(0, [0, 1, 2], [0, 0, 0], [False, True, True], 1, id="not when that is away"),
        pytest.param(None, [0, 9, 9], [0, 0, 0], [False, True, True], 1, id="an engine that is away is not idle"),
        pytest.param(None, [2, 1], [0, 0], [False, False], 1, id="with all away, they may come back"),
    ],
)
def test_where_a_request_goes(
    home: int | None, loads: list[int], sent: list[int], usable: list[bool], expected: int
) -> None:
    assert chosen(home=home, loads=loads, sent=sent, usable=usable) == expected


def test_a_longer_conversation_is_at_home_where_its_beginning_was() -> None:
    homes = PrefixHomes()
    homes.note(LONG, 2)
    assert homes.home([*LONG, 7, 8, 9]) == 2
    assert homes.home([1, *LONG]) is None
    assert homes.home(LONG[:5]) is None, "too short to be worth a detour"


def test_of_two_that_share_a_beginning_each_goes_on_where_it_was() -> None:
    homes = PrefixHomes()
    one, other = [*LONG, *[1] * 40], [*LONG, *[2] * 40]
    homes.note(one, 0)
    homes.note(other, 1)
    assert (homes.home([*one, 5]), homes.home([*other, 5])) == (0, 1)


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    homes = PrefixHomes(most_blocks=2)
    for start in range(3):
        homes.note(range(start, start + 32), start)
    assert [homes.home(range(start, start + 32)) for start in range(3)] == [None, 1, 2]


class Engine:
    """Answers with its own weights, or with an error while it has one."""

    def __init__(self, version: int) -> None:
        self.gate = VersionGate(Position(1, version))
        self.error: EngineError | None = None
        self.asked: list[tuple[int, ...]] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def generate(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        weight_version: str,
        progress: Progress | None = None,
    ) -> Generated:
        self.asked.append(tuple(input_ids))
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return Generated(
            token_ids=(7, 8),
            logprobs=(-0.1, -0.2),
            finish="stop",
            weight_version=label_of(self.gate.position),
            weight_runs=None,
        )

    async def load(self, *, timeout_s: float) -> EngineLoad:
        return EngineLoad(running=0, waiting=0, token_usage=0.0)


def spread(*engines: Engine) -> SpreadSampler:
    return SpreadSampler([PolicySampler(engine, engine.gate) for engine in engines], backoff=HASTY)


async def complete(sampler: SpreadSampler, prompt: Sequence[int]) -> int:
    """The version that it was sampled with."""
    completion = await sampler.complete(prompt, SETTINGS, request_id="r", deadline_s=5.0)
    (span,) = completion.spans
    assert span.version is not None
    return span.version


async def test_requests_side_by_side_go_to_all_engines_and_each_answer_has_its_engines_version() -> None:
    engines = [Engine(version) for version in (3, 4, 5)]
    sampler = spread(*engines)
    for engine in engines:
        engine.answers.clear()
    requests = [asyncio.create_task(complete(sampler, [number])) for number in range(6)]
    await asyncio.sleep(0)
    assert [len(engine.asked) for engine in engines] == [2, 2, 2]
    for engine in engines:
        engine.answers.set()
    assert sorted(await asyncio.gather(*requests)) == [3, 3, 4, 4, 5, 5]


async def test_a_conversation_stays_with_its_engine() -> None:
    engines = [Engine(3), Engine(3)]
    sampler = spread(*engines)
    for turn in range(5):
        await complete(sampler, [*LONG, *[9] * (40 * turn)])
    assert sorted(sampler.sent) == [0, 5]


async def test_another_engine_answers_for_one_that_is_lost_and_is_spared_it_from_then_on() -> None:
    gone, there = Engine(3), Engine(4)
    gone.error = EngineUnavailable("gone")
    sampler = spread(gone, there)
    assert [await complete(sampler, LONG) for _ in range(4)] == [4, 4, 4, 4]
    assert len(gone.asked) == 1


async def test_an_engine_that_takes_weights_is_passed_over() -> None:
    swapping, there = Engine(3), Engine(4)
    sampler = spread(swapping, there)
    swapping.gate.close()
    assert await complete(sampler, [1]) == 4
    assert swapping.asked == []
