"""Right answers score 1 and wrong ones 0; an answer that nobody could check scores nothing at all."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.polling import eventually
from tests.support.rollout.group_runners import runner
from tests.support.rollout.speakers import role
from trimtab.fabric.wire.task import Task
from trimtab.rollout.worker.failures import EpisodeFailed, TaskRefused
from trimtab.rollout.workflows.answer_checks import exact, numeric, share_in_place
from trimtab.rollout.workflows.mathematics import Mathematics, VerificationFailed, VerificationTimeout
from trimtab.rollout.workflows.rehearsal import Script, rehearse
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.solver_verifier import SolverVerifier
from trimtab.rollout.workflows.team import Assignment, Episode, PromptUnusable, ScoredConversation, Team

ENDLESS = r"\boxed{100000000!}"


def children() -> set[int]:
    """The processes this one has started and not seen the end of."""
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return set(map(int, own.read_text(encoding="utf-8").split()))


@asynccontextmanager
async def judging(*, timeout_s: float) -> AsyncIterator[Mathematics]:
    """With one child at a time."""
    before = children()
    judge = Mathematics(processes=1, timeout_s=timeout_s)
    yield judge
    await judge.close()
    await eventually(lambda: children() <= before, timeout_s=10.0)


with_shared_child = pytest.mark.asyncio(loop_scope="module")
"""A child takes seconds to import sympy, so it is kept from test to test, as is the loop that its pipes are on."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mathematics() -> AsyncIterator[Mathematics]:
    """With eight seconds for an answer, which is enough on a busy machine."""
    async with judging(timeout_s=8.0) as judge:
        yield judge


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [("7", "7", 1.0), ("8", "7", 0.0), ("71", "7", 0.5), ("", "7", 0.0), ("", "", 1.0), ("1x3", "123", 2 / 3)],
)
def test_share_in_place(answer: str, expected: str, reward: float) -> None:
    assert share_in_place(answer, expected) == pytest.approx(reward)


@pytest.mark.parametrize(("answer", "reward"), [(" Paris\n", 1.0), ("paris", 0.0), ("Paris.", 0.0), ("", 0.0)])
async def test_exact(answer: str, reward: float) -> None:
    assert await exact(answer, "Paris") == reward


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ("the total is 1,000.", "1000", 1.0),
        ("1000.00", "1,000", 1.0),
        ("first 2, then 3", "3", 1.0),
        ("3, then 2", "3", 0.0),
        ("10-3", "-3", 0.0),
        ("10-3", "3", 1.0),
        ("x = -3", "-3", 1.0),
        ("\N{MINUS SIGN}3", "-3", 1.0),
        (".5", "0.5", 1.0),
        ("2e3", "2000", 1.0),
        ("0.333", "0.3333", 0.0),
        ("9007199254740993", "9007199254740992", 0.0),
        ("no idea", "3", 0.0),
        ("9" * 100_000, "3", 0.0),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_numeric(answer: str, expected: str, reward: float) -> None:
    assert await numeric(answer, expected) == reward


async def test_an_expected_answer_without_a_number_is_the_prompts_fault() -> None:
    with pytest.raises(PromptUnusable, match="no number: 'three'"):
        await numeric("3", "three")


@with_shared_child
async def test_mathematics(mathematics: Mathematics) -> None:
    for answer, expected, reward in [
        ("so it is \\boxed{0.5}", "\\frac{1}{2}", 1.0),
        ("so it is \\boxed{\\frac{2}{3}}", "\\frac{1}{2}", 0.0),
        ("$1 + x^2$", "x^2+1", 1.0),
        ("$x^2 + 2$", "x^2+1", 0.0),
        ("The answer is $\\{2, 1\\}$", "$\\{1,2\\}$", 1.0),
        ("I do not know", "42", 0.0),
        ("42", "42", 1.0),
    ]:
        assert await mathematics.score(answer, expected) == reward, (answer, expected)


@with_shared_child
async def test_an_expected_answer_without_mathematics_is_the_prompts_fault(mathematics: Mathematics) -> None:
    with pytest.raises(PromptUnusable, match="no mathematics in the expected answer"):
        await mathematics.score("42", "$$")


async def test_a_comparison_without_end_is_a_timeout_and_the_next_answer_is_judged() -> None:
    async with judging(timeout_s=2.0) as judge:
        with pytest.raises(VerificationTimeout, match="took over 2 s"):
            await judge.score(ENDLESS, "7")
        assert await judge.score("7", "7") == 1.0


@with_shared_child
async def test_a_comparison_that_is_given_up_does_not_answer_the_next_one(mathematics: Mathematics) -> None:
    assert await mathematics.score("7", "7") == 1.0
    waiting = asyncio.create_task(mathematics.score(ENDLESS, "7"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await mathematics.score("7", "7") == 1.0


async def test_a_child_that_dies_is_a_failure_and_no_zero() -> None:
    before = children()
    async with judging(timeout_s=8.0) as judge:
        assert await judge.score("7", "7") == 1.0
        (child,) = children() - before
        os.kill(child, 9)
        with pytest.raises(VerificationFailed):
            await judge.score("7", "7")
        assert await judge.score("7", "7") == 1.0


async def test_an_answer_without_end_fails_the_group_by_name_and_gives_no_reward() -> None:
    class Judged:
        async def run(self, task: Assignment, team: Team, /) -> Episode:
            conversation = team.begin()
            conversation.hear(str(task.column("prompt")))
            reward = await judge.score(await conversation.speak(), str(task.column("answer")))
            return Episode((ScoredConversation(conversation, reward=reward),))

    task = Task(
        task_id="t", job="j", prompt_id="p", prompt={"prompt": "?", "answer": "7"}, group_size=1, seed=1, created_at=1.0
    )
    group = runner(Judged(), {"solver": role(Script(ENDLESS), max_new_tokens=40)}, timeout_s=60.0)
    async with judging(timeout_s=0.5) as judge:
        with pytest.raises(EpisodeFailed) as caught:
            await group.run(task)
    assert caught.value.kind == "verification-timeout"


@pytest.mark.slow
async def test_an_answer_without_end_scores_what_the_manifest_says() -> None:
    arguments = {"timeout_s": 3.0, "on_timeout": -0.5}
    workflow = SingleTurn(check="math", check_args=arguments, answer_pattern=r"\\boxed.*")
    prompt = {"prompt": "?", "answer": "7"}
    (endless,) = (await rehearse(workflow, prompt, scripts={"solver": Script(ENDLESS)})).scored
    assert (endless.reward, endless.reward_parts) == (-0.5, {"check_timeout": 1.0})
    (none,) = (await rehearse(workflow, prompt, scripts={"solver": Script("7")})).scored
    assert (none.reward, none.reward_parts) == (0.0, {"check_timeout": 0.0})


@pytest.mark.slow
async def test_an_attempt_without_end_is_rejected_by_a_right_verdict() -> None:
    workflow = SolverVerifier(check_args={"timeout_s": 3.0, "on_timeout": 0}, retries=0)
    scripts = {"solver": Script(ENDLESS), "verifier": Script("REJECT")}
    solved, judged = (await rehearse(workflow, {"prompt": "?", "answer": "7"}, scripts=scripts)).scored
    assert (solved.reward, solved.reward_parts) == (0.0, {"check_timeout": 1.0})
    assert judged.reward == 1.0


@pytest.mark.parametrize(
    ("check", "arguments", "why"),
    [
        ("math", {"on_timeout": "zero"}, "check_args.on_timeout is 'zero': it is fail, or the score"),
        ("math", {"on_timeout": True}, "check_args.on_timeout is True"),
        ("math", {"on_timeout": float("nan")}, "check_args.on_timeout is nan"),
        ("math", {"timeout_s": 0}, "check_args.timeout_s is 0"),
        ("math", {"on_time_out": 0}, "check_args of check math: got an unexpected keyword argument 'on_time_out'"),
        ("exact", {"on_timeout": 0}, "check_args of check exact: got an unexpected keyword argument 'on_timeout'"),
    ],
)
def test_arguments_that_a_check_cannot_follow_are_refused(check: str, arguments: Any, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        SingleTurn(check=check, check_args=arguments)


async def test_a_prompt_that_cannot_be_used_is_refused_without_another_attempt() -> None:
    task = Task(task_id="t", job="j", prompt_id="p", prompt={"prompt": "?"}, group_size=1, seed=1, created_at=1.0)
    with pytest.raises(TaskRefused, match="no column 'answer'"):
        await runner(SingleTurn(), {"solver": role(Script("7"))}).run(task)


@pytest.mark.slow
def test_without_math_verify_the_job_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ModuleNotFoundError, match="trimtab\\[rollout\\]"):
        SingleTurn(check="math")
