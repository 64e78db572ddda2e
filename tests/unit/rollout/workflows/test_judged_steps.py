"""Steps are worth what a judge or a verifier says of them; what nobody could read is worth nothing, and no zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.rollout.group_runners import runner
from tests.support.rollout.speakers import assignment, role
from trimtab.fabric.wire.task import Task
from trimtab.rollout.worker.failures import EpisodeFailed
from trimtab.rollout.workflows.judged_steps import JudgedSteps
from trimtab.rollout.workflows.rehearsal import Script
from trimtab.rollout.workflows.team import Episode, Role, Team, WorkflowError

TEXTS: dict[str, Any] = {
    "solver_text": "{problem}>",
    "next_text": "|",
    "judge_text": "{problem}>{steps}/{step}?",
    "verifier_text": "{problem}>{steps}/{step}!",
    "final_pattern": r"\.",
    "check": "exact",
}
PROMPT = {"prompt": "sort 21", "answer": "1\n2."}


def roles(*, credits_turns: bool = True, frozen: bool = True, **scripts: Script) -> dict[str, Role]:
    made = {name: role(script, name, policy=name, max_new_tokens=40) for name, script in scripts.items()}
    made["solver"] = replace(made["solver"], credits_turns=credits_turns)
    if "judge" in made:
        made["judge"] = replace(made["judge"], frozen=frozen)
    return made


async def play(team: dict[str, Role], **arguments: Any) -> Episode:
    task = assignment(**PROMPT)
    return await JudgedSteps(**{**TEXTS, **arguments}).run(task, Team(team, task))


async def test_the_outcome_alone_is_that_of_all_steps() -> None:
    solver = Script("1", "2.")
    (solved,) = (await play(roles(solver=solver))).scored
    assert solver.heard == ["sort 21>", "sort 21>1|"]
    assert (solved.reward, solved.turn_rewards) == (1.0, None)


async def test_a_judge_scores_every_step_with_those_before_it_in_view() -> None:
    judge = Script("good. Score: 10", "Score: 2, no. Score: 5")
    (solved,) = (await play(roles(solver=Script("1", "3."), judge=judge), scores="judge")).scored
    assert judge.heard == ["sort 21>/1?", "sort 21>1/3.?"]
    assert solved.reward == 0.0
    assert solved.turn_rewards == pytest.approx([0.2, 0.1])
    assert solved.reward_parts == {"judged": 0.75}


async def test_no_judge_makes_a_wrong_outcome_worth_more_than_half_of_a_right_one() -> None:
    best = Script(*["Score: 10"] * 3)
    (wrong,) = (await play(roles(solver=Script("3", "3", "3"), judge=best), scores="judge", max_steps=3)).scored
    worst = Script(*["Score: 0"] * 2)
    (right,) = (await play(roles(solver=Script("1", "2."), judge=worst), scores="judge")).scored
    outcome_weight = 0.5
    assert sum(wrong.turn_rewards or ()) + outcome_weight * wrong.reward < outcome_weight * right.reward


@pytest.mark.parametrize("said", ["I like it.", "Score: 11", "Score: ten"])
async def test_a_judge_that_cannot_be_read_fails_the_episode_by_name(said: str) -> None:
    task = Task(task_id="t", job="j", prompt_id="p", prompt=PROMPT, group_size=1, seed=1, created_at=1.0)
    group = runner(JudgedSteps(**TEXTS, scores="judge"), roles(solver=Script("2."), judge=Script(said)))
    with pytest.raises(EpisodeFailed) as caught:
        await group.run(task)
    assert caught.value.kind == "verdict-unreadable"
    assert said[-20:] in caught.value.text


async def test_a_verifier_is_rewarded_for_foreseeing_the_outcome() -> None:
    verifier = Script("NO", "It was NO, now YES")
    solved, first, second = (await play(roles(solver=Script("1", "2."), verifier=verifier), scores="verifier")).scored
    assert verifier.heard == ["sort 21>/1!", "sort 21>1/2.!"]
    assert solved.turn_rewards == pytest.approx([0.0, 0.2])
    assert (first.reward, second.reward) == (0.0, 1.0)
    assert {first.conversation.role.name, second.conversation.role.name} == {"verifier"}


async def test_from_a_verifier_that_cannot_be_read_the_solver_learns_nothing() -> None:
    verifier = Script("who knows", "NO")
    scored = (await play(roles(solver=Script("1", "3."), verifier=verifier), scores="verifier")).scored
    assert [(one.conversation.role.name, one.reward) for one in scored] == [("verifier", 0.0), ("verifier", 1.0)]


async def test_scores_that_would_have_no_effect_are_refused() -> None:
    with pytest.raises(WorkflowError, match=r"set its algorithm\.credit\.type to Turn"):
        await play(roles(solver=Script(), verifier=Script(), credits_turns=False), scores="verifier")
    with pytest.raises(WorkflowError, match="make it frozen"):
        await play(roles(solver=Script(), judge=Script(), frozen=False), scores="judge")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"scores": "both"}, "scores is 'both': it is outcome, judge or verifier"),
        ({"max_steps": 0}, "max_steps is 0: at least 1"),
        ({"turn_weight": 0}, "turn_weight is 0"),
        ({"score_pattern": "Score"}, "has 0 groups: one is needed"),
        ({"score_range": [10, 0]}, "score_range is"),
        ({"judge_text": "good?"}, "judge_text lacks {step}"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        JudgedSteps(**{**TEXTS, **arguments})


@pytest.mark.parametrize(("scores", "needed"), [("outcome", ("solver",)), ("verifier", ("solver", "verifier"))])
def test_the_roles_are_those_that_take_part(scores: str, needed: tuple[str, ...]) -> None:
    assert JudgedSteps(**TEXTS, scores=scores).roles == needed
