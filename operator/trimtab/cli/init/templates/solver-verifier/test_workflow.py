"""The workflow with lines in place of models."""

import asyncio

from workflow import SolverVerifier

from trimtab.rollout.workflows.rehearsal import Script, rehearse

PROMPT = {"prompt": "What is 17 + 25?", "answer": "42"}


def rewards(solver: list[str], verifier: list[str]) -> dict[str, float]:
    scripts = {"solver": Script(*solver), "verifier": Script(*verifier)}
    episode = asyncio.run(rehearse(SolverVerifier(), PROMPT, scripts=scripts))
    return {one.conversation.role.name: one.reward for one in episode.scored}


def test_a_rejected_solver_tries_again() -> None:
    assert rewards(["41", "42"], ["7 + 5 is 12: REJECT", "ACCEPT"]) == {"solver": 1.0, "verifier": 1.0}


def test_a_verifier_that_accepts_a_wrong_answer_earns_nothing() -> None:
    assert rewards(["41"], ["ACCEPT"]) == {"solver": 0.0, "verifier": 0.0}
