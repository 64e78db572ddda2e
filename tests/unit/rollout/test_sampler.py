"""A completion goes on across aborts, with the version of every token. The engine is a script of answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trimtab.fabric.wire.spans import model_span
from trimtab.rollout import sampler as sampler_module
from trimtab.rollout.engines.client import (
    EngineClient,
    EngineError,
    EngineOverloaded,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Generated,
    SamplingSettings,
)
from trimtab.rollout.sampler import PolicySampler
from trimtab.rollout.version_gate import VersionGate

SETTINGS = SamplingSettings(max_new_tokens=6, seed=11)


class ScriptedEngine(EngineClient):
    """Gives the next answer of its script; before it answers, the gate moves on to that answer's version."""

    def __init__(self, gate: VersionGate, script: Sequence[Generated | EngineError]) -> None:
        self._gate = gate
        self._script = list(script)
        self.asked: list[tuple[tuple[int, ...], SamplingSettings, str]] = []

    async def generate(self, input_ids: Sequence[int], settings: SamplingSettings, *, request_id: str) -> Generated:
        self.asked.append((tuple(input_ids), settings, request_id))
        answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(answer, EngineError):
            raise answer
        if self._script[0] is not answer and isinstance(self._script[0], Generated):
            # As after a swap: the next request is stamped with the next version.
            self._gate.version = int(self._script[0].weight_version)
        return answer


def part(tokens: Sequence[int], finish: str, version: int) -> Generated:
    logprobs = tuple(-token / 10 for token in tokens)
    return Generated(token_ids=tuple(tokens), logprobs=logprobs, finish=finish, weight_version=str(version))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "_RETRY_FIRST_S", 0.0001)
    monkeypatch.setattr(sampler_module, "_RETRY_MAX_S", 0.001)


async def complete(script: Sequence[Generated | EngineError], *, version: int = 3, deadline_s: float = 5.0):  # type: ignore[no-untyped-def]
    gate = VersionGate(version)
    engine = ScriptedEngine(gate, script)
    sampler = PolicySampler(engine, gate)
    completion = await sampler.complete([1, 2], SETTINGS, request_id="r", deadline_s=deadline_s)
    return completion, engine, sampler


async def test_one_request() -> None:
    completion, engine, sampler = await complete([part([5, 6], "stop", 3)])
    assert completion.token_ids == (5, 6)
    assert completion.logprobs == (-0.5, -0.6)
    assert completion.spans == (model_span(2, version=3),)
    assert completion.finish == "stop"
    assert engine.asked == [((1, 2), SETTINGS, "r.0")]
    assert sampler.sampled_tokens == 2
    assert not sampler.lost.is_set()


async def test_aborted_parts_are_kept_with_their_versions_and_the_rest_is_asked_for() -> None:
    script = [part([5, 6], "abort", 3), part([7], "abort", 4), part([8, 9], "stop", 7)]
    completion, engine, _ = await complete(script)
    assert completion.token_ids == (5, 6, 7, 8, 9)
    assert completion.logprobs == (-0.5, -0.6, -0.7, -0.8, -0.9)
    assert completion.spans == (model_span(2, version=3), model_span(1, version=4), model_span(2, version=7))
    assert [asked[0] for asked in engine.asked] == [(1, 2), (1, 2, 5, 6), (1, 2, 5, 6, 7)]
    assert [asked[1].max_new_tokens for asked in engine.asked] == [6, 4, 3]
    assert [asked[2] for asked in engine.asked] == ["r.0", "r.1", "r.2"]


async def test_a_part_does_not_draw_the_random_numbers_of_the_one_before() -> None:
    _, engine, _ = await complete([part([5], "abort", 3), part([6], "abort", 3), part([7], "stop", 3)])
    seeds = [asked[1].seed for asked in engine.asked]
    assert seeds[0] == 11
    assert len(set(seeds)) == 3


async def test_parts_of_one_version_are_one_span() -> None:
    completion, _, _ = await complete([part([5], "abort", 3), part([6], "length", 3)])
    assert completion.spans == (model_span(2, version=3),)


async def test_an_abort_before_the_first_token_adds_nothing() -> None:
    completion, _, _ = await complete([part([], "abort", 3), part([5], "stop", 4)])
    assert completion.spans == (model_span(1, version=4),)


async def test_aborted_with_nothing_left_to_ask_for_is_finished_by_length() -> None:
    completion, engine, _ = await complete([part([1, 2, 3, 4, 5, 6], "abort", 3)])
    assert completion.finish == "length"
    assert len(engine.asked) == 1


async def test_an_answer_with_other_weights_is_thrown_away_and_the_engine_reported_lost() -> None:
    completion, engine, sampler = await complete([part([9, 9, 9], "stop", 0), part([5], "stop", 3)])
    # The scripted gate follows the script; the first answer said version 0 to a request stamped 3.
    assert completion.token_ids == (5,)
    assert completion.spans == (model_span(1, version=3),)
    assert sampler.lost.is_set()
    assert len(engine.asked) == 2


@pytest.mark.parametrize(
    ("error", "lost"), [(EngineUnavailable("connection refused"), True), (EngineOverloaded("queue full"), False)]
)
async def test_passing_failures_are_repeated(error: EngineError, lost: bool) -> None:
    completion, _, sampler = await complete([error, error, part([5], "stop", 3)])
    assert completion.token_ids == (5,)
    assert sampler.lost.is_set() is lost


async def test_a_refusal_is_not_repeated() -> None:
    with pytest.raises(EngineRefused):
        await complete([EngineRefused("too long")])


@pytest.mark.parametrize("stuck", [EngineUnavailable("gone"), part([], "abort", 3)], ids=["gone", "aborting"])
async def test_the_deadline_ends_it_with_a_typed_error(stuck: Generated | EngineError) -> None:
    with pytest.raises(EngineTimeout):
        await complete([stuck], deadline_s=0.05)
