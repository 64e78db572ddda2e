"""A completion goes on across aborts, with the version of every token. The engine is a script of answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import (
    EngineError,
    EngineOverloaded,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Finish,
    Generated,
    Progress,
    SamplingSettings,
    WeightRun,
)
from trimtab.rollout.policy.sampler import Completion, PolicySampler, spans_of
from trimtab.rollout.policy.trust import token_versions
from trimtab.rollout.policy.version_gate import BASE, VersionGate, label_of, position_of
from trimtab.weights.store.position import Position

SETTINGS = SamplingSettings(max_new_tokens=6, seed=11)


def at(version: int) -> Position:
    return Position(epoch=1, version=version)


class ScriptedEngine(EngineClient):
    """Gives the next answer of its script. Between two answers the engine gets the weights of the next, as in a swap
    between requests.
    """

    def __init__(self, gate: VersionGate, script: Sequence[Generated | EngineError]) -> None:
        self._gate = gate
        self._script = list(script)
        self.asked: list[tuple[tuple[int, ...], SamplingSettings, str]] = []

    async def generate(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        weight_version: str,
        progress: Progress | None = None,
    ) -> Generated:
        self.asked.append((tuple(input_ids), settings, request_id))
        answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(answer, EngineError):
            raise answer
        following = self._script[0]
        if following is not answer and isinstance(following, Generated):
            position = position_of(following.weight_version)
            assert position is not None
            self._gate.settle(position)
        return answer


def part(tokens: Sequence[int], finish: Finish, version: int) -> Generated:
    logprobs = tuple(-token / 10 for token in tokens)
    return Generated(
        token_ids=tuple(tokens),
        logprobs=logprobs,
        finish=finish,
        weight_version=label_of(at(version)),
        weight_runs=None,
    )


def hasty(engine: EngineClient, gate: VersionGate) -> PolicySampler:
    return PolicySampler(engine, gate, backoff=FullJitter(base_s=0.0001, cap_s=0.001))


async def complete(
    script: Sequence[Generated | EngineError],
    *,
    settings: SamplingSettings = SETTINGS,
    version: int = 3,
    deadline_s: float = 5.0,
) -> tuple[Completion, ScriptedEngine, PolicySampler]:
    gate = VersionGate(at(version))
    engine = ScriptedEngine(gate, script)
    sampler = hasty(engine, gate)
    completion = await sampler.complete([1, 2], settings, request_id="r", deadline_s=deadline_s)
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
    assert sampler.overloads == (0 if lost else 2)


async def test_requests_that_an_engine_turned_away_together_do_not_come_back_together() -> None:
    asked: list[float] = []

    def drawn(low: float, high: float) -> float:
        asked.append(high)
        return low

    gate = VersionGate(at(3))
    engine = ScriptedEngine(gate, [*[EngineOverloaded("full")] * 3, part([], "abort", 3), part([5], "stop", 3)])
    sampler = PolicySampler(engine, gate, backoff=FullJitter(base_s=1.0, cap_s=2.0, uniform=drawn))
    await sampler.complete([1, 2], SETTINGS, request_id="r", deadline_s=60.0)
    assert asked == [1.0, 2.0, 2.0, 2.0, 1.0, 1.0]


async def test_a_refusal_is_not_repeated() -> None:
    with pytest.raises(EngineRefused):
        await complete([EngineRefused("too long")])


@pytest.mark.parametrize("stuck", [EngineUnavailable("gone"), part([], "abort", 3)], ids=["gone", "aborting"])
async def test_the_deadline_ends_it_with_a_typed_error(stuck: Generated | EngineError) -> None:
    with pytest.raises(EngineTimeout):
        await complete([stuck], deadline_s=0.05)


async def test_a_stop_text_that_an_abort_cuts_in_two_is_drawn_again_from_before_its_beginning() -> None:
    """The engine looks for the text in its own output; a beginning that it is given as a prompt it does not see."""
    script = [part([5, 6, 7, 8], "abort", 3), part([9], "stop", 4)]
    settings = SamplingSettings(max_new_tokens=6, seed=11, stop=("</a", "x"))
    completion, engine, _ = await complete(script, settings=settings)
    assert [asked[0] for asked in engine.asked] == [(1, 2), (1, 2, 5, 6)]
    assert engine.asked[1][1].max_new_tokens == 4
    assert completion.token_ids == (5, 6, 9)
    assert completion.logprobs == (-0.5, -0.6, -0.9)
    assert completion.spans == (model_span(2, version=3), model_span(1, version=4))


async def test_what_earlier_parts_brought_is_not_drawn_again_for_a_stop_text() -> None:
    settings = SamplingSettings(max_new_tokens=6, stop=("y" * 100,))
    completion, engine, _ = await complete([part([5, 6], "abort", 3), part([7], "stop", 3)], settings=settings)
    assert [asked[0] for asked in engine.asked] == [(1, 2), (1, 2)]
    assert completion.token_ids == (7,)


class SwappedUnderWay(EngineClient):
    """An engine that is given new weights in the middle of each request, and says so or not."""

    def __init__(self, gate: VersionGate, *runs: tuple[Position, int], accounts: bool) -> None:
        self._gate = gate
        self._runs = runs
        self._accounts = accounts
        self.asked = 0

    async def generate(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        weight_version: str,
        progress: Progress | None = None,
    ) -> Generated:
        self.asked += 1
        if self.asked == 1:
            for position, _ in self._runs[1:]:
                self._gate.begin(position)
                self._gate.settle(position)
        runs = tuple(WeightRun(weight_version=label_of(position), length=length) for position, length in self._runs)
        count = sum(length for _, length in self._runs)
        return Generated(
            token_ids=(7,) * count,
            logprobs=(-0.5,) * count,
            finish="stop",
            weight_version=runs[-1].weight_version,
            weight_runs=runs if self._accounts else None,
        )


async def test_spans_come_from_an_engine_that_accounts_for_every_token() -> None:
    gate = VersionGate(at(3))
    # The trainer was restarted from a checkpoint: version 3 again, in a new epoch, and other weights.
    again = Position(epoch=2, version=3)
    engine = SwappedUnderWay(gate, (at(3), 2), (at(4), 1), (again, 3), accounts=True)
    sampler = hasty(engine, gate)
    completion = await sampler.complete([1], SETTINGS, request_id="r", deadline_s=60.0)
    assert completion.spans == (model_span(2, version=3), model_span(1, version=4), model_span(3, version=3))
    assert sampler.accounts_for_tokens
    assert not sampler.lost.is_set()


async def test_an_engine_that_does_not_account_is_not_believed_about_a_request_that_crossed_a_swap() -> None:
    gate = VersionGate(at(3))
    engine = SwappedUnderWay(gate, (at(3), 2), (at(4), 1), accounts=False)
    sampler = hasty(engine, gate)
    completion = await sampler.complete([1], SETTINGS, request_id="r", deadline_s=60.0)
    # The second time nothing was swapped, and its one word holds for all tokens.
    assert engine.asked == 2
    assert completion.spans == (model_span(3, version=4),)
    assert not sampler.accounts_for_tokens
    assert sampler.lost.is_set()


OLD, NEW, NEWER = Position(1, 7), Position(1, 8), Position(2, 7)


def answered(*runs: tuple[Position | str, int], accounts: bool = True) -> Generated:
    named = [(run if isinstance(run, str) else label_of(run), length) for run, length in runs]
    count = sum(length for _, length in named)
    return Generated(
        token_ids=(1,) * count,
        logprobs=(-1.0,) * count,
        finish="length",
        weight_version=named[-1][0],
        weight_runs=tuple(WeightRun(weight_version=name, length=length) for name, length in named)
        if accounts
        else None,
    )


@pytest.mark.parametrize(
    ("answer", "possible", "versions"),
    [
        (answered((OLD, 3)), [OLD], [7, 7, 7]),
        (answered((OLD, 1), (NEW, 2)), [OLD, NEW], [7, 8, 8]),
        (answered((NEW, 2)), [OLD, NEW], [8, 8]),
        (answered((OLD, 2)), [OLD, NEW], [7, 7]),
        (answered((OLD, 1), (NEWER, 1)), [OLD, NEW, NEWER], [7, 7]),
        (answered((BASE, 2)), [BASE], [0, 0]),
        (answered((OLD, 2), accounts=False), [OLD], [7, 7]),
        (answered((OLD, 0)), [OLD], []),
    ],
)
def test_what_the_engine_can_have_had_is_believed(
    answer: Generated, possible: list[Position], versions: list[int]
) -> None:
    assert token_versions(answer, possible) == versions


@pytest.mark.parametrize(
    ("answer", "possible"),
    [
        (answered((NEW, 2)), [OLD]),
        (answered((BASE, 2)), [OLD]),
        (answered(("default", 2)), [BASE]),
        (answered((NEWER, 2)), [OLD]),  # the same version number, of another epoch
        (answered((NEW, 1), (OLD, 1)), [OLD, NEW]),  # backwards
        (answered((OLD, 1), (BASE, 1)), [OLD, NEW]),
        (answered((NEW, 2), accounts=False), [OLD, NEW]),
        (answered((OLD, 2), accounts=False), [OLD, NEW]),
        (answered((NEW, 2), accounts=False), [OLD]),
    ],
)
def test_anything_else_is_not(answer: Generated, possible: list[Position]) -> None:
    assert token_versions(answer, possible) is None


def test_runs_of_equal_versions_are_one_span() -> None:
    assert spans_of([7, 7, 8, 7]) == (model_span(2, version=7), model_span(1, version=8), model_span(1, version=7))
    assert spans_of([]) == ()


@pytest.mark.parametrize("position", [BASE, OLD, NEWER, Position(1, 0), Position(3, 17), Position(10**9, 10**12)])
def test_a_label_names_one_position(position: Position) -> None:
    assert position_of(label_of(position)) == position


def test_labels_are_epoch_and_version() -> None:
    assert label_of(Position(3, 17)) == "3.17"
    assert label_of(BASE) == "0"


@pytest.mark.parametrize(
    "label", ["default", "", "3", "1.", ".1", "01.2", "1.02", "0.0", "0.3", "1.2.3", "1.-2", "1.2 "]
)
def test_a_name_that_is_not_ours_is_no_position(label: str) -> None:
    assert position_of(label) is None
