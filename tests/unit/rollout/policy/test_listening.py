"""Who listens to a completion hears its tokens, each once and none that is taken back, whatever happens to engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.contract import (
    EngineError,
    EngineLoad,
    EngineOverloaded,
    EngineRefused,
    EngineUnavailable,
    Finish,
    Generated,
    Progress,
    SamplingSettings,
    WeightRun,
)
from trimtab.rollout.policy.sampler import Completing, Completion, PolicySampler, SpreadSampler
from trimtab.rollout.policy.version_gate import VersionGate, label_of
from trimtab.weights.store.position import Position

SETTINGS = SamplingSettings(max_new_tokens=8, seed=11)
HASTY = FullJitter(base_s=0.0001, cap_s=0.001)
BROKEN = EngineUnavailable("connection reset")


def at(version: int) -> Position:
    return Position(epoch=1, version=version)


def part(*tokens: int, version: int = 3, accounts: bool = True) -> Generated:
    return Generated(
        token_ids=tokens,
        logprobs=tuple(-token / 10 for token in tokens),
        finish="abort",
        weight_version=label_of(at(version)),
        weight_runs=(WeightRun(weight_version=label_of(at(version)), length=len(tokens)),) if accounts else None,
    )


@dataclass(frozen=True)
class Act:
    """One request: what is told on the way, what happens beside it, and how it ends."""

    tells: Sequence[Generated | Callable[[VersionGate], None]]
    ends: Finish | EngineError
    last: Generated | None = None


class Engine:
    """Plays one act for each request."""

    def __init__(self, *acts: Act, version: int = 3) -> None:
        self.gate = VersionGate(at(version))
        self._acts = list(acts)
        self.asked: list[tuple[int, ...]] = []
        self.streamed: list[bool] = []

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
        self.streamed.append(progress is not None)
        act = self._acts.pop(0)
        parts: list[Generated] = []
        for tells in act.tells:
            if isinstance(tells, Generated):
                parts.append(tells)
                if progress is not None:
                    progress(tells)
            else:
                tells(self.gate)
        if isinstance(act.ends, EngineError):
            raise act.ends
        if act.last is not None:
            parts.append(act.last)
        runs = tuple(run for each in parts for run in each.weight_runs or ())
        return Generated(
            token_ids=tuple(token for each in parts for token in each.token_ids),
            logprobs=tuple(logprob for each in parts for logprob in each.logprobs),
            finish=act.ends,
            weight_version=parts[-1].weight_version,
            weight_runs=None if any(each.weight_runs is None for each in parts) else runs,
        )

    async def load(self, *, timeout_s: float) -> EngineLoad:
        return EngineLoad(running=0, waiting=0, token_usage=0.0)


async def heard(*engines: Engine, settings: SamplingSettings = SETTINGS) -> tuple[list[tuple[int, ...]], Completion]:
    samplers = [PolicySampler(engine, engine.gate, backoff=HASTY) for engine in engines]
    sampler: Completing = samplers[0] if len(samplers) == 1 else SpreadSampler(samplers, backoff=HASTY)
    told: list[tuple[int, ...]] = []
    completion = await sampler.complete(
        [1, 2],
        settings,
        request_id="r",
        deadline_s=60.0,
        listener=lambda token_ids: told.append(tuple(token_ids)),
    )
    assert tuple(token for tokens in told for token in tokens) == completion.token_ids, "each once, in their order"
    assert completion.logprobs == tuple(-token / 10 for token in completion.token_ids), "each with its own logprob"
    return told, completion


def swap(version: int) -> Callable[[VersionGate], None]:
    def swapped(gate: VersionGate) -> None:
        gate.begin(at(version))
        gate.settle(at(version))

    return swapped


async def test_tokens_are_heard_as_they_come() -> None:
    told, completion = await heard(Engine(Act([part(5), part(6, 7)], "stop", part(8))))
    assert told == [(5,), (6, 7), (8,)]
    assert completion.finish == "stop"


async def test_no_engine_is_asked_to_stream_where_nobody_listens() -> None:
    engine = Engine(Act([part(5)], "stop"))
    sampler = PolicySampler(engine, engine.gate, backoff=HASTY)
    await sampler.complete([1, 2], SETTINGS, request_id="r", deadline_s=60.0)
    assert engine.streamed == [False]


@pytest.mark.parametrize("error", [BROKEN, EngineOverloaded("full")], ids=["broken", "overloaded"])
async def test_what_was_heard_before_an_answer_broke_off_stays_and_the_rest_is_asked_for(error: EngineError) -> None:
    engine = Engine(Act([part(5), part(6)], error), Act([], error), Act([part(7)], "stop", part(8)))
    told, completion = await heard(engine)
    assert told == [(5,), (6,), (7,), (8,)]
    assert engine.asked == [(1, 2), (1, 2, 5, 6), (1, 2, 5, 6)]
    assert completion.spans == (model_span(4, version=3),)


async def test_another_engine_goes_on_where_one_broke_off() -> None:
    dying = Engine(Act([part(5), part(6)], BROKEN))
    other = Engine(Act([part(7, version=9)], "stop", part(8, version=9)), version=9)
    told, completion = await heard(dying, other)
    assert told == [(5,), (6,), (7,), (8,)]
    assert other.asked == [(1, 2, 5, 6)]
    assert completion.spans == (model_span(2, version=3), model_span(2, version=9))


async def test_weights_that_come_on_the_way_are_those_of_the_tokens_after_them() -> None:
    engine = Engine(Act([part(5), swap(4), part(6, version=4), swap(5)], "stop", part(7, version=5)))
    told, completion = await heard(engine)
    assert told == [(5,), (6,), (7,)]
    assert [(span.length, span.version) for span in completion.spans] == [(1, 3), (1, 4), (1, 5)]


async def test_what_was_sampled_with_weights_that_it_cannot_have_is_never_heard() -> None:
    engine = Engine(Act([part(5), part(6, version=8), part(7)], "stop", part(8)), Act([part(9)], "stop", part(4)))
    told, completion = await heard(engine)
    assert told == [(5,), (9,), (4,)]
    assert engine.asked == [(1, 2), (1, 2, 5)]
    assert completion.spans == (model_span(3, version=3),)


async def test_weights_do_not_come_back_within_an_answer() -> None:
    engine = Engine(
        Act([part(5), swap(4), part(6, version=4), part(7, version=3)], "stop"), Act([], "stop", part(9, version=4))
    )
    told, completion = await heard(engine)
    assert told == [(5,), (6,), (9,)]
    assert completion.spans == (model_span(1, version=3), model_span(2, version=4))


async def test_an_engine_that_does_not_account_for_tokens_is_believed_up_to_a_swap() -> None:
    engine = Engine(
        Act([part(5, accounts=False), swap(4), part(6, accounts=False)], "stop", part(7, version=4, accounts=False)),
        Act([part(8, version=4, accounts=False)], "stop", part(9, version=4, accounts=False)),
    )
    told, completion = await heard(engine)
    assert told == [(5,), (8,), (9,)]
    assert completion.spans == (model_span(1, version=3), model_span(2, version=4))


async def test_the_beginning_of_a_stop_text_is_not_heard_before_it_is_known_to_be_none() -> None:
    settings = SamplingSettings(max_new_tokens=8, stop=("</a", "x"))
    engine = Engine(Act([part(5), part(6, 7), part(8)], "abort"), Act([part(1, 2, 3)], "stop", part(4)))
    told, _ = await heard(engine, settings=settings)
    # Two tokens may be a beginning. They are drawn again when it is aborted, and heard when it has ended.
    assert told == [(5,), (6,), (1,), (2, 3, 4)]
    assert engine.asked == [(1, 2), (1, 2, 5, 6)]


async def test_a_broken_answer_of_which_nothing_is_certain_is_asked_for_again() -> None:
    settings = SamplingSettings(max_new_tokens=8, stop=("</answer>",))
    engine = Engine(Act([part(5), part(6)], BROKEN), Act([part(7)], "stop", part(8)))
    told, _ = await heard(engine, settings=settings)
    assert told == [(7, 8)]
    assert engine.asked == [(1, 2), (1, 2)]


async def test_an_answer_that_broke_off_with_nothing_left_to_ask_for_is_finished_by_length() -> None:
    settings = SamplingSettings(max_new_tokens=2)
    told, completion = await heard(Engine(Act([part(5), part(6)], BROKEN)), settings=settings)
    assert told == [(5,), (6,)]
    assert completion.finish == "length"


async def test_a_refusal_on_the_way_is_not_hidden() -> None:
    with pytest.raises(EngineRefused):
        await heard(Engine(Act([part(5)], EngineRefused("no"))))
