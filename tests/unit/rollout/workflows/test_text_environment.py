"""A policy in a world of text: rewards are added up, limits become a finish, and a broken world gives no reward."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.rollout.environments import Closed
from tests.support.rollout.speakers import alone, assignment, role
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.spans import Producer, Span, model_span
from trimtab.fabric.wire.trajectory import Finish
from trimtab.rollout.workflows.number_guessing import NumberGuessing
from trimtab.rollout.workflows.rehearsal import Script
from trimtab.rollout.workflows.team import NoRoom, PromptUnusable, ScoredConversation, Team, WorkflowError
from trimtab.rollout.workflows.text_environment import TextEnvironment

GUESSING = "trimtab.rollout.workflows.number_guessing:NumberGuessing"
ENVIRONMENTS = "tests.support.rollout.environments"


async def play(sampler: Script, environment: str, **arguments: Any) -> ScoredConversation:
    task = assignment(number=6, name="Ada")
    workflow = TextEnvironment(environment=environment, **arguments)
    (scored,) = (await workflow.run(task, Team({"solver": role(sampler)}, task))).scored
    return scored


async def test_a_number_is_found_by_what_the_environment_says() -> None:
    sampler = Script("3", "nine", "8", "6")
    scored = await play(sampler, GUESSING, max_turns=4)
    assert scored.reward == 1.0
    assert (scored.conversation.turns, scored.conversation.finish) == (4, Finish.STOP)
    assert sampler.heard[-1] == ("Guess a number from 0 to 9: 3\nHigher: nine\nThat is no number. Guess: 8\nLower: ")
    assert alone(scored.conversation).spans[:4] == (
        Span(28, Producer.PROMPT),
        model_span(1, version=0),
        Span(9, Producer.ENVIRONMENT),
        model_span(4, version=0),
    )
    assert alone(scored.conversation).spans[-1] == model_span(1, version=0)


async def test_at_the_last_turn_the_episode_ends_by_turns() -> None:
    scored = await play(Script("3", "4"), GUESSING, max_turns=2)
    assert scored.reward == 0.0
    assert (scored.conversation.turns, scored.conversation.finish) == (2, Finish.TURNS)


async def test_at_the_token_budget_the_episode_ends_by_length() -> None:
    scored = await play(Script("3", "4"), GUESSING, max_tokens=45)
    assert (scored.conversation.turns, scored.conversation.finish) == (2, Finish.LENGTH)


async def test_a_beginning_that_leaves_no_room_is_a_failure_by_name() -> None:
    with pytest.raises(NoRoom, match="role solver, turn 1: 28 tokens"):
        await play(Script(), GUESSING, max_tokens=20)


async def test_an_environment_is_closed_however_the_episode_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Closed.count
    await play(Script("go", "go"), f"{ENVIRONMENTS}:Closed", max_turns=1)
    with pytest.raises(WorkflowError, match="no line left"):
        await play(Script(), f"{ENVIRONMENTS}:Closed")
    assert Closed.count == closed + 2
    # What the episode came to is known before.
    monkeypatch.setattr("trimtab.rollout.workflows.text_environment._CLOSE_TIMEOUT_S", 0.05)
    for how in ("raises", "hangs"):
        scored = await play(Script("go"), f"{ENVIRONMENTS}:Closed", max_turns=1, environment_args={"how": how})
        assert scored.reward == 0.5


async def test_messages_of_an_environment_are_read_one_after_the_other_without_a_chat_template() -> None:
    sampler = Script("go")
    await play(sampler, f"{ENVIRONMENTS}:Closed", max_turns=1)
    assert sampler.heard == ["You act.\nGo."]


async def test_an_async_environment_is_awaited_and_its_rewards_are_added_up() -> None:
    sampler = Script("forward", "back", "forward", "forward")
    scored = await play(sampler, f"{ENVIRONMENTS}:Corridor")
    assert scored.reward == 1.25
    assert sampler.heard[-1] == "Ada, go.forwardat 1.backat 1.forwardat 2."


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("raises", "environment-failed", "step 1 of .*Broken: KeyError: 'the door'"),
        ("times out itself", "environment-failed", "TimeoutError: of its own"),
        ("hangs", "environment-timeout", "step 1 of .*Broken took over 0.05 s: see step_timeout_s"),
        ("answers wrongly", "environment-failed", r"step 1 of .* answered 'only text': return \(text, reward, done\)"),
    ],
)
async def test_a_broken_environment_is_a_failure_by_name_and_no_reward(how: str, kind: str, message: str) -> None:
    with pytest.raises(WorkflowError, match=message) as caught:
        await play(
            Script("a"),
            f"{ENVIRONMENTS}:Broken",
            environment_args={"how": how},
            step_timeout_s=0.05 if how == "hangs" else 60.0,
        )
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ("no_such_module:X", {}, "environment 'no_such_module:X' cannot be loaded: No module named"),
        (f"{ENVIRONMENTS}:Missing", {}, "cannot be loaded: .*Missing"),
        (f"{ENVIRONMENTS}:Broken", {}, "cannot be made: missing a required (keyword-only )?argument: 'how'"),
        (f"{ENVIRONMENTS}:Speechless", {}, "has no step"),
    ],
)
def test_an_environment_that_cannot_be_made_is_found_before_the_first_episode(
    environment: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, JobMisconfigured), match=message):
        TextEnvironment(environment=environment, environment_args=arguments)


@pytest.mark.parametrize("number", [None, 10, -1, "6", math.pi])
async def test_a_prompt_without_a_number_in_range_is_refused(number: object) -> None:
    with pytest.raises(PromptUnusable, match="column 'number'"):
        NumberGuessing().reset({"number": number})


def test_a_guess_of_any_length_is_answered() -> None:
    environment = NumberGuessing()
    environment.reset({"number": 6})
    assert environment.step("-" + "9" * 10_000) == ("\nHigher: ", 0.0, False)
    assert environment.step("9" * 10_000) == ("\nLower: ", 0.0, False)
