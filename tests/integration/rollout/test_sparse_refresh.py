"""Between two versions an engine gets what changed, in a short pause, and ends up with the very weights of the whole
file; where that is not possible it gets the whole file.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.polling import eventually, within
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.engine_proxy import Forward, OnTheWay, engine_behind
from tests.support.rollout.job import Job
from tests.support.rollout.served_policies import D, WeightsOfJob, own_part, reset, weights_of
from tests.support.rollout.token_reference import TokenReference
from tests.support.rollout.weighed import Weighed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.wire.spans import Producer, Span
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.policy.sampler import Completion
from trimtab.rollout.policy.version_gate import label_of
from trimtab.rollout.worker.served_policy import ServedPolicy
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.position import Position

LONG = SamplingSettings(max_new_tokens=58, seed=1)
PROMPT = [1, 2, 3]


@pytest.fixture
async def weights(
    bus: Bus,
    object_store_settings: ObjectStoreSettings,
    engine_process: EngineProcess,
    models: Path,
    tmp_path: Path,
) -> AsyncIterator[WeightsOfJob]:
    await reset(engine_process, models)
    async with weights_of(await Job.open(bus), own_part(object_store_settings), models, tmp_path) as weights:
        yield weights


def swaps(weights: WeightsOfJob) -> dict[str, int]:
    """How many there were of each kind, by the metrics."""
    found = {}
    for metric in weights.metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == "trimtab_weight_swap_pause_seconds_count":
                found[sample.labels["kind"]] = int(sample.value)
    return found


@pytest.fixture
def weighed(engine_process: EngineProcess) -> Weighed:
    return Weighed(engine_process.url)


async def brought(
    weights: WeightsOfJob,
    served_policy: ServedPolicy[EngineClient],
    publisher: WeightPublisher,
    version: int,
    model: Path,
) -> None:
    before = swaps(weights)
    await weights.publish(publisher, version, model=model)
    await eventually(lambda: swaps(weights) != before, timeout_s=20.0, interval_s=0.01)
    wanted = Position(publisher.epoch, version)
    assert served_policy.gate.position == wanted
    served = await served_policy.engine.model_info(timeout_s=D)
    assert served.weight_version == label_of(wanted)


async def test_what_changed_gives_the_very_weights_of_the_whole_file(
    weights: WeightsOfJob, engine_process: EngineProcess, weighed: Weighed, steps: Mapping[int, Path]
) -> None:
    seen = {}
    async with weights.worker_policy(engine_process.url) as served_policy:
        publisher = await weights.publisher()
        for version in range(1, 5):
            await brought(weights, served_policy, publisher, version, steps[version])
            seen[version] = await weighed.checksum()
    assert swaps(weights) == {"whole": 1, "sparse": 3}
    assert seen == {version: await weighed.checksum_of(steps[version]) for version in seen}
    assert len(set(seen.values())) == 4


async def test_a_worker_that_starts_again_asks_the_engine_and_hops_from_what_it_serves(
    weights: WeightsOfJob, engine_process: EngineProcess, weighed: Weighed, steps: Mapping[int, Path]
) -> None:
    publisher = await weights.publisher()
    async with weights.worker_policy(engine_process.url) as served_policy:
        await brought(weights, served_policy, publisher, 1, steps[1])
        await served_policy.engine.pause("in_place", timeout_s=D)  # as one that dies in the middle of a swap leaves it
    before = swaps(weights)
    async with weights.worker_policy(engine_process.url) as served_policy:
        await within(served_policy.refresh.ready.wait(), D)
        assert served_policy.gate.position == Position(publisher.epoch, 1)
        completion = await served_policy.sampler.complete(PROMPT, LONG, request_id="again", deadline_s=D)
        assert {span.version for span in completion.spans} == {1}
    assert swaps(weights) == before
    await weights.publish(publisher, 2, model=steps[2])
    await weights.publish(publisher, 3, model=steps[3])
    async with weights.worker_policy(engine_process.url) as served_policy:
        await eventually(
            lambda: served_policy.gate.version == 3 and served_policy.refresh.ready.is_set(), timeout_s=20.0
        )
    assert swaps(weights) == {"whole": 1, "sparse": 1}
    assert await weighed.checksum() == await weighed.checksum_of(steps[3])


async def test_an_engine_that_was_restarted_gets_the_whole_weights(
    weights: WeightsOfJob, engine_process: EngineProcess, weighed: Weighed, steps: Mapping[int, Path]
) -> None:
    async with weights.worker_policy(engine_process.url) as served_policy:
        publisher = await weights.publisher()
        await brought(weights, served_policy, publisher, 1, steps[1])
        engine_process.kill()
        engine_process.start()
        await engine_process.serves()
        await brought(weights, served_policy, publisher, 2, steps[2])
        assert swaps(weights) == {"whole": 2}
        assert await weighed.checksum() == await weighed.checksum_of(steps[2])


async def test_an_engine_with_other_weights_than_we_think_refuses_the_changes_and_gets_the_whole(
    weights: WeightsOfJob, engine_process: EngineProcess, weighed: Weighed, steps: Mapping[int, Path]
) -> None:
    async with weights.worker_policy(engine_process.url) as served_policy:
        publisher = await weights.publisher()
        await brought(weights, served_policy, publisher, 1, steps[1])
        await weighed.checksum_of(steps[5])
        await brought(weights, served_policy, publisher, 2, steps[2])
        assert swaps(weights) == {"whole": 2}
        assert await weighed.checksum() == await weighed.checksum_of(steps[2])


async def test_an_engine_that_knows_no_sparse_updates_is_asked_once_and_gets_the_whole(
    weights: WeightsOfJob, engine_process: EngineProcess, weighed: Weighed, steps: Mapping[int, Path]
) -> None:
    asked: list[str] = []

    async def unknown(request: web.Request, forward: Forward) -> web.Response:
        if request.path == "/update_weights_from_disk" and (await request.json()).get("load_format") == "sparse":
            asked.append(request.path)
            return web.Response(status=404)
        return await forward(request)

    async with engine_behind(engine_process.url, unknown) as url, weights.worker_policy(url) as served_policy:
        publisher = await weights.publisher()
        for version in (1, 2, 3, 4):
            await brought(weights, served_policy, publisher, version, steps[version])
    assert swaps(weights) == {"whole": 4}
    assert len(asked) == 1
    assert await weighed.checksum() == await weighed.checksum_of(steps[4])


async def test_a_trainer_that_went_back_repeats_versions_with_other_weights(
    weights: WeightsOfJob, engine_process: EngineProcess, weighed: Weighed, steps: Mapping[int, Path]
) -> None:
    async with weights.worker_policy(engine_process.url) as served_policy:
        first = await weights.publisher()
        for version in (1, 2, 3):
            await brought(weights, served_policy, first, version, steps[version])
        again = await weights.publisher()
        await brought(weights, served_policy, again, 2, steps[6])
        completion = await served_policy.sampler.complete(PROMPT, LONG, request_id="again", deadline_s=D)
        assert {span.version for span in completion.spans} == {2}
        TokenReference({2: steps[6]}).check_tokens(*spoken(completion))
        await brought(weights, served_policy, again, 3, steps[7])
        assert await weighed.checksum() == await weighed.checksum_of(steps[7])


def spoken(completion: Completion) -> tuple[list[int], list[float], list[Span]]:
    """With the prompt before it."""
    return (
        [*PROMPT, *completion.token_ids],
        [0.0] * len(PROMPT) + list(completion.logprobs),
        [Span(len(PROMPT), Producer.PROMPT), *completion.spans],
    )


async def completions_during(
    served_policy: ServedPolicy[EngineClient], publishing: Awaitable[None], *, at_once: int = 4
) -> list[Completion]:
    """What is sampled, one after another on several lines, until all is published and served."""
    done = asyncio.Event()
    completed: list[Completion] = []

    async def talk(line: int) -> None:
        number = 0
        while not done.is_set():
            settings = replace(LONG, seed=1000 * line + number)
            request_id = f"{line}-{number}"
            completed.append(
                await served_policy.sampler.complete(PROMPT, settings, request_id=request_id, deadline_s=D)
            )
            number += 1

    async with asyncio.TaskGroup() as lines:
        for line in range(at_once):
            lines.create_task(talk(line))
        await publishing
        done.set()
    return completed


def check(completions: list[Completion], reference: TokenReference) -> None:
    """All that crossed a swap, and some of the others, of which there are many."""
    crossed = [completion for completion in completions if len(completion.spans) > 1]
    assert crossed
    others = [completion for completion in completions if len(completion.spans) == 1]
    for completion in crossed + others[:: max(1, len(others) // 20)]:
        assert len(completion.token_ids) == LONG.max_new_tokens
        versions = [span.version for span in completion.spans if span.version is not None]
        assert versions == sorted(versions)
        reference.check_tokens(*spoken(completion))


def hiding(field: str, *, path: str) -> OnTheWay:
    """The engine as one whose answers have not got this field."""

    async def hide(request: web.Request, forward: Forward) -> web.Response:
        response = await forward(request)
        if request.path != path or response.status != 200:
            return response
        assert response.text is not None
        answer = json.loads(response.text)
        del answer.get("meta_info", answer)[field]
        return web.json_response(answer)

    return hide


@pytest.mark.parametrize(
    ("kind", "paused"), [("sparse", False), pytest.param("whole", False, marks=pytest.mark.slow), ("whole", True)]
)
async def test_a_swap_in_the_middle_of_a_generation_stamps_the_right_spans(
    weights: WeightsOfJob,
    engine_process: EngineProcess,
    steps: Mapping[int, Path],
    models: Path,
    kind: str,
    paused: bool,
) -> None:
    """An engine that does not pause by itself for its weights is paused, in place."""
    pauses = Counter[str]()

    async def counted(request: web.Request, forward: Forward) -> web.Response:
        if request.path == "/pause_generation":
            pauses[(await request.json())["mode"]] += 1
        return await forward(request)

    on_the_way: list[OnTheWay] = [counted]
    if paused:
        on_the_way.append(hiding("pause_seconds", path="/update_weights_from_disk"))
    folders = steps if kind == "sparse" else {version: models / str(version % 3) for version in range(9)}
    async with engine_behind(engine_process.url, *on_the_way) as url, weights.worker_policy(url) as served_policy:
        publisher = await weights.publisher()
        await brought(weights, served_policy, publisher, 1, folders[1])

        async def publish() -> None:
            # The first answers show that the engine may be swapped under running requests.
            await eventually(lambda: served_policy.sampler.accounts_for_tokens, timeout_s=20.0)
            for version in range(2, 8):
                await brought(weights, served_policy, publisher, version, folders[version])

        completions = await completions_during(served_policy, publish())
    check(completions, TokenReference(folders))
    assert pauses["in_place"] == (6 if paused else 0)
    assert swaps(weights) == ({"whole": 1, "sparse": 6} if kind == "sparse" else {"whole": 7})


async def test_an_engine_that_does_not_account_for_tokens_is_swapped_between_requests(
    weights: WeightsOfJob, engine_process: EngineProcess, steps: Mapping[int, Path]
) -> None:
    async with (
        engine_behind(engine_process.url, hiding("weight_versions", path="/generate")) as url,
        weights.worker_policy(url) as served_policy,
    ):
        publisher = await weights.publisher()
        await brought(weights, served_policy, publisher, 1, steps[1])

        async def publish() -> None:
            for version in range(2, 6):
                await brought(weights, served_policy, publisher, version, steps[version])

        completions = await completions_during(served_policy, publish())
        assert not served_policy.sampler.accounts_for_tokens
        assert not served_policy.sampler.lost.is_set()
    check(completions, TokenReference(steps))
