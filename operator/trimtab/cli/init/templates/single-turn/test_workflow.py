"""The workflow with lines in place of a model."""

import asyncio

from workflow import SingleTurn

from trimtab.rollout.workflows.rehearsal import Script, rehearse

PROMPT = {"prompt": "What is 17 + 25?", "answer": "42"}


def reward_of(line: str) -> float:
    episode = asyncio.run(rehearse(SingleTurn(), PROMPT, scripts={"solver": Script(line)}))
    return episode.scored[0].reward


def test_a_right_answer_is_worth_more_than_a_wrong_one() -> None:
    assert reward_of("17 + 25 = 42") == 1.1
    assert reward_of("It is 43") == 0.1


def test_a_long_answer_is_worth_less() -> None:
    assert reward_of("Let me think. " * 20 + "42") == 1.0
