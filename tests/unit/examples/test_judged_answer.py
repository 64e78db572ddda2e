"""The workflow of the solver-verifier example: who hears what, and who is rewarded for what."""

from __future__ import annotations

import random

import pytest

from examples.solver_verifier.judged_answer import JudgedAnswer
from trimtab.rollout.workflows.rehearsal import Script, rehearse

_PROMPT = {"prompt": "3,0,2>", "answer": "3"}


async def _rewards(answer: str, verdict: str) -> tuple[float, float, str]:
    scripts = {"solver": Script(answer), "verifier": Script(verdict)}
    episode = await rehearse(JudgedAnswer(answers="01234"), _PROMPT, scripts=scripts)
    solver, verifier = (scored.reward for scored in episode.scored)
    return solver, verifier, scripts["verifier"].heard[0]


@pytest.mark.parametrize(("answer", "reward"), [("3", 1.0), ("2", 0.0), (">", 0.0)])
async def test_the_solver_is_rewarded_for_the_answer(answer: str, reward: float) -> None:
    assert (await _rewards(answer, "+"))[0] == reward


async def test_the_verifier_is_rewarded_for_the_judgement_of_what_it_was_shown() -> None:
    _, accepted, shown = await _rewards("2", "+")
    _, rejected, again = await _rewards("2", "-")
    assert shown == again
    assert (accepted, rejected) == ((1.0, 0.0) if shown == "3,0,2>3?" else (0.0, 1.0))
    assert (await _rewards("2", "4"))[1] == 0.0


@pytest.mark.parametrize("said", ["3", "2", ">"])
def test_right_and_wrong_answers_are_judged_equally_often(said: str) -> None:
    workflow = JudgedAnswer(answers="01234")
    judged = [workflow._to_be_judged(said, known="3", chance=random.Random(seed)) for seed in range(400)]
    assert 160 < judged.count("3") < 240
    wrong = {answer for answer in judged if answer != "3"}
    assert wrong == ({"2"} if said == "2" else set("0124"))
