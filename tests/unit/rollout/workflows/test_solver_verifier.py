"""The solver is paid by the answer, the verifier by its verdicts, and each learns from its own words only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rollout.speakers import alone, assignment, role
from trimtab.fabric.wire.spans import Producer
from trimtab.fabric.wire.trajectory import Finish
from trimtab.rollout.workflows.rehearsal import Script
from trimtab.rollout.workflows.solver_verifier import SolverVerifier
from trimtab.rollout.workflows.team import NoRoom, PromptUnusable, ScoredConversation, Team

TEXTS = {
    "solver_text": "{problem}=",
    "verifier_text": "{problem}={solution}?",
    "retry_text": "[{feedback}]",
    "next_text": "or {solution}?",
}


async def play(solver: Script, verifier: Script, **arguments: Any) -> tuple[ScoredConversation, ScoredConversation]:
    task = assignment(prompt="2+2", answer="4")
    roles = {
        "solver": role(solver, "solver", max_new_tokens=40),
        "verifier": role(verifier, "verifier", policy="critic", max_new_tokens=40),
    }
    workflow = SolverVerifier(**{"check": "exact", **TEXTS, **arguments})
    first, second = (await workflow.run(task, Team(roles, task))).scored
    return first, second


async def test_an_accepted_answer_ends_the_episode() -> None:
    solver, verifier = Script("4"), Script("fine. ACCEPT")
    solved, judged = await play(solver, verifier, retries=3)
    assert (solved.conversation.role.policy, judged.conversation.role.policy) == ("solver", "critic")
    assert (solver.heard, verifier.heard) == (["2+2="], ["2+2=4?"])
    assert (solved.reward, judged.reward) == (1.0, 1.0)


async def test_a_rejected_answer_is_tried_again_with_the_reasons() -> None:
    solver, verifier = Script("5", "4"), Script("one too many. REJECT", "ACCEPT")
    solved, judged = await play(solver, verifier, retries=1)
    assert solver.heard[1] == "2+2=5[one too many. REJECT]"
    assert verifier.heard[1] == "2+2=5?one too many. REJECTor 4?"
    assert (solved.reward, judged.reward) == (1.0, 1.0)
    producers = [span.producer for span in alone(solved.conversation).spans]
    assert producers == [Producer.PROMPT, Producer.MODEL, Producer.ENVIRONMENT, Producer.MODEL]
    assert [span.length for span in alone(solved.conversation).spans] == [4, 1, 22, 1]
    assert (solved.conversation.turns, judged.conversation.turns) == (2, 2)


async def test_when_the_retries_are_used_up_the_last_answer_counts() -> None:
    solved, judged = await play(Script("4", "5"), Script("REJECT", "REJECT"), retries=1)
    assert solved.reward == 0.0
    assert judged.reward == 0.5


@pytest.mark.parametrize(
    ("answer", "judgement", "solver", "verifier"),
    [
        ("5", "ACCEPT", 0.0, 0.0),
        ("5", "I would ACCEPT, but no: REJECT", 0.0, 1.0),
        ("4", "REJECT", 1.0, 0.0),
        ("4", "who knows", 1.0, 0.0),
        ("5", "who knows", 0.0, 0.0),
    ],
)
async def test_the_verifier_is_paid_for_being_right(
    answer: str, judgement: str, solver: float, verifier: float
) -> None:
    solved, judged = await play(Script(answer), Script(judgement), retries=0)
    assert (solved.reward, judged.reward) == (solver, verifier)


async def test_a_solver_without_room_for_another_attempt_keeps_the_one_it_has() -> None:
    solver, verifier = Script("5"), Script("no, no, no, no: REJECT")
    solved, judged = await play(solver, verifier, retries=5, max_tokens=28)
    assert (solved.reward, solved.conversation.finish) == (0.0, Finish.LENGTH)
    assert (judged.reward, judged.conversation.finish) == (1.0, Finish.STOP)


async def test_a_verifier_without_room_for_another_attempt_is_paid_for_the_verdicts_it_gave() -> None:
    solver, verifier = Script("5", "4" + " " * 20), Script("REJECT")
    solved, judged = await play(solver, verifier, retries=5, max_tokens=35)
    assert solved.reward == 1.0
    assert (judged.reward, judged.conversation.turns, judged.conversation.finish) == (1.0, 1, Finish.LENGTH)


async def test_a_verifier_that_cannot_even_hear_the_first_attempt_fails_the_episode_by_name() -> None:
    with pytest.raises(NoRoom, match="role verifier, turn 1"):
        await play(Script("5" * 20), Script(), max_tokens=24)


async def test_braces_in_what_is_said_are_left_alone() -> None:
    solver, verifier = Script("{problem} \\boxed{4}"), Script("ACCEPT")
    await play(solver, verifier)
    assert verifier.heard == ["2+2={problem} \\boxed{4}?"]


async def test_a_problem_that_is_no_text_is_the_prompts_fault() -> None:
    task = assignment(prompt=[{"role": "user", "content": "2+2"}], answer="4")
    roles = {name: role(Script(), name) for name in ("solver", "verifier")}
    with pytest.raises(PromptUnusable, match="column 'prompt' is a list"):
        await SolverVerifier(check="exact").run(task, Team(roles, task))


def test_fewer_than_no_retries_are_refused() -> None:
    with pytest.raises(ValueError, match="retries is -1"):
        SolverVerifier(check="exact", retries=-1)
