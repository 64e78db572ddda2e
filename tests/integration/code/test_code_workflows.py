"""Who is rewarded for what where programs are written: the solver, a selector and a test writer."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.rollout.sandbox.contract import Ended, Program, Sandbox, SandboxFailed
from trimtab.rollout.workflows.rehearsal import Script, rehearse
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.solver_selector import SolverSelector
from trimtab.rollout.workflows.solver_tests import SolverTests
from trimtab.rollout.workflows.team import PromptUnusable, WorkflowError

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = {
    "prompt": "Add two numbers.",
    "tests": {"inputs": [[1, 2], [3, 4]], "outputs": [3, 7], "fn_name": "add"},
    "reference": "def add(a, b):\n    return a + b",
}
RIGHT = "Like this:\n```python\ndef add(a, b):\n    return a + b\n```\n"
WRONG = "```python\ndef add(a, b):\n    return a * b + 1\n```"
PATIENT = {"case_timeout_s": 20.0, "timeout_s": 60.0}
TELLS = "```\nassert add(2, 3) == 5\n```"
ACCEPTS_ALL = "```\nassert add(1, 2) == 3\n```"
REJECTS_ALL = "```\nassert add(1, 2) == 4\n```"


async def rewards(workflow: Any, sandbox: Sandbox | None, **scripts: Script) -> list[tuple[str, float]]:
    episode = await rehearse(workflow, PROMPT, scripts=scripts, sandbox=sandbox)
    return [(one.conversation.role.name, one.reward) for one in episode.scored]


@pytest.mark.parametrize(("score", "said", "reward"), [("all", WRONG, 0.0), ("share", WRONG, 0.5), ("all", RIGHT, 1.0)])
async def test_one_answer_by_all_tests_or_by_their_share(
    sandbox: Sandbox, score: str, said: str, reward: float
) -> None:
    workflow = SingleTurn(answer_column="tests", check="tests", check_args={"score": score, **PATIENT})
    assert await rewards(workflow, sandbox, solver=Script(said)) == [("solver", reward)]


async def test_a_template_is_put_around_what_is_said(sandbox: Sandbox) -> None:
    arguments = {"template": "add = lambda a, b: a {code} b", **PATIENT}
    workflow = SingleTurn(answer_column="tests", check="tests", check_args=arguments)
    assert await rewards(workflow, sandbox, solver=Script("+")) == [("solver", 1.0)]


async def test_an_answer_without_the_pattern_is_wrong(sandbox: Sandbox) -> None:
    workflow = SingleTurn(answer_column="tests", check="tests", answer_pattern="<code>(.*)</code>")
    assert await rewards(workflow, sandbox, solver=Script(RIGHT)) == [("solver", 0.0)]


async def test_tests_that_are_none_are_the_prompts_fault(sandbox: Sandbox) -> None:
    workflow = SingleTurn(answer_column="tests", check="tests", check_args=PATIENT)
    for tests in ({"inputs": ["1"]}, "assert add(1, 2) =="):
        with pytest.raises(PromptUnusable, match="check: tests"):
            await rehearse(workflow, {**PROMPT, "tests": tests}, scripts={"solver": Script(RIGHT)}, sandbox=sandbox)


async def test_a_sandbox_that_fails_is_no_zero() -> None:
    class Broken:
        async def run(self, program: Program, /) -> Ended:
            raise SandboxFailed("no room")

    workflow = SingleTurn(answer_column="tests", check="tests")
    with pytest.raises(SandboxFailed, match="no room"):
        await rewards(workflow, Broken(), solver=Script(RIGHT))
    with pytest.raises(WorkflowError, match=r"set workflow\.sandbox"):
        await rewards(workflow, None, solver=Script(RIGHT))


@pytest.mark.parametrize(
    ("choice", "selector"),
    [("The second: 2", [("selector", 1.0)]), ("1", [("selector", 0.0)]), ("7", [("selector", 0.0)])],
)
async def test_the_selector_is_rewarded_for_its_choice(
    sandbox: Sandbox, choice: str, selector: list[tuple[str, float]]
) -> None:
    chooses = Script(choice)
    workflow = SolverSelector(check_args=PATIENT)
    found = await rewards(workflow, sandbox, solver=Script(WRONG, RIGHT), selector=chooses)
    assert found == [("solver", 0.0), ("solver", 1.0), *selector]
    assert f"Candidate 1:\n{WRONG}\n\nCandidate 2:\n{RIGHT}" in chooses.heard[0]


@pytest.mark.parametrize(("choice", "selector"), [("1", []), ("neither", [("selector", 0.0)])])
async def test_where_all_candidates_are_alike_only_no_choice_is_wrong(
    sandbox: Sandbox, choice: str, selector: list[tuple[str, float]]
) -> None:
    solver = Script(RIGHT, RIGHT)
    found = await rewards(SolverSelector(check_args=PATIENT), sandbox, solver=solver, selector=Script(choice))
    assert found == [("solver", 1.0), ("solver", 1.0), *selector]


@pytest.mark.parametrize(
    ("tests", "reward"),
    [(TELLS, 1.0), (ACCEPTS_ALL, 0.0), (REJECTS_ALL, 0.0), ("no tests at all", 0.0), ('{"inputs": []}', 0.0)],
)
async def test_the_tester_is_rewarded_for_telling_right_from_wrong(sandbox: Sandbox, tests: str, reward: float) -> None:
    workflow = SolverTests(retries=0, check_args=PATIENT)
    solver, writer = Script(RIGHT, WRONG), Script(tests)
    found = await rewards(workflow, sandbox, solver=solver, tester=writer)
    assert found == [("solver", 1.0), ("solver", 0.0), ("tester", reward)]


async def test_cases_of_the_tester_call_what_the_hidden_ones_call(sandbox: Sandbox) -> None:
    writer = Script('```json\n{"inputs": [[2, 3]], "outputs": [5]}\n```')
    workflow = SolverTests(retries=0, check_args=PATIENT)
    found = await rewards(workflow, sandbox, solver=Script(RIGHT, WRONG), tester=writer)
    assert found[-1] == ("tester", 1.0)


@pytest.mark.parametrize(
    ("arguments", "writer"),
    [({}, []), ({"reference_column": "reference"}, [("tester", 1.0)]), ({"writer_reward": "outcome"}, None)],
)
async def test_where_all_are_wrong_a_reference_tells(sandbox: Sandbox, arguments: Any, writer: Any) -> None:
    workflow = SolverTests(retries=0, check_args=PATIENT, **arguments)
    found = await rewards(workflow, sandbox, solver=Script(WRONG, WRONG), tester=Script(TELLS))
    assert found[2:] == ([("tester", 0.0)] if writer is None else writer)


async def test_a_program_that_fails_a_written_test_is_tried_again_with_the_reason(sandbox: Sandbox) -> None:
    solver, writer = Script(WRONG, RIGHT), Script(TELLS)
    episode = await rehearse(
        SolverTests(candidates=1, check_args=PATIENT),
        PROMPT,
        scripts={"solver": solver, "tester": writer},
        sandbox=sandbox,
    )
    solved, told = episode.scored
    assert "AssertionError in `assert add(2, 3) == 5`" in solver.heard[1]
    assert (solved.reward, solved.reward_parts, solved.conversation.turns) == (1.0, {"first_attempt": 0.0}, 2)
    assert (told.reward, told.reward_parts) == (1.0, {"accepts_right": 1.0, "rejects_wrong": 1.0})


async def test_a_program_that_the_written_tests_accept_is_handed_in(sandbox: Sandbox) -> None:
    solver = Script(WRONG)
    workflow = SolverTests(candidates=1, retries=3, check_args=PATIENT)
    found = await rewards(workflow, sandbox, solver=solver, tester=Script(ACCEPTS_ALL))
    assert found == [("solver", 0.0)]


async def test_the_same_program_is_run_once_on_the_same_tests(sandbox: Sandbox) -> None:
    class Counted:
        runs = 0

        async def run(self, program: Program, /) -> Ended:
            self.runs += 1
            return await sandbox.run(program)

    counted = Counted()
    workflow = SingleTurn(answer_column="tests", check="tests", check_args=PATIENT)
    for said, reward, runs in ((RIGHT, 1.0, 1), (RIGHT, 1.0, 1), (WRONG, 0.0, 2), (WRONG, 0.0, 2)):
        assert await rewards(workflow, counted, solver=Script(said)) == [("solver", reward)]
        assert counted.runs == runs
    slow = Script(
        "```\ndef add(a, b):\n    while True:\n        pass\n```",
        "```\ndef add(a, b):\n    while True:\n        pass\n```",
    )
    hasty = SingleTurn(answer_column="tests", check="tests", check_args={"case_timeout_s": 1.0, "timeout_s": 1.0})
    for _ in range(2):
        assert await rewards(hasty, counted, solver=slow) == [("solver", 0.0)]
    assert counted.runs == 4
