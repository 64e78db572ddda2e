"""Makes what planner and verifier learn from: problems, and two tiny Llamas that know the form of what they say, but
seldom what is right.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from examples.largest_digit import write_rows
from examples.planner.sums import WORDS, Sum, all_sums, draw_sum
from examples.taught_model import Said, teach
from examples.tiny_model import make_model, make_word_tokenizer

_HELD_OUT = 22
_STEPS = 250
_RIGHT = 0.5
"""How often a step, an answer or a verdict that they are shown is the right one."""


def planned_episode(chance: random.Random) -> Sequence[Said]:
    asked = draw_sum(chance)
    worked_out = asked if chance.random() < _RIGHT else draw_sum(chance)
    said: list[Said] = [
        (f"{asked.text} ?", False),
        (f"<calculator> {worked_out.text} </calculator>", True),
        (f"result {worked_out.value}", False),
        (f"<answer> {_answer(worked_out, chance)} </answer>", True),
    ]
    if chance.random() < 0.5:
        said += [("rejected", False), (f"<answer> {_answer(worked_out, chance)} </answer>", True)]
    return said


def judged_episode(chance: random.Random) -> Sequence[Said]:
    asked = draw_sum(chance)
    worked_out = asked if chance.random() < _RIGHT else draw_sum(chance)
    answer = _answer(worked_out, chance)
    right = answer == asked.value
    accepts = right if chance.random() < _RIGHT else chance.random() < 0.5
    memory = f"1. calculator: {worked_out.text} gave: {worked_out.value}"
    if chance.random() < 0.3:
        memory += f" 2. answer: {_answer(worked_out, chance)} gave: rejected"
    return ((f"{asked.text} ? {memory} answer {answer} ?", False), ("ACCEPT" if accepts else "REJECT", True))


def _answer(worked_out: Sum, chance: random.Random) -> int:
    return worked_out.value if chance.random() < _RIGHT else chance.randrange(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    shown = {"planner": planned_episode, "verifier": judged_episode}
    for number, (policy, episode) in enumerate(shown.items()):
        seed = 2 * arguments.seed + number
        model = arguments.folder / f"{policy}-model"
        make_word_tokenizer(model, words=WORDS)
        make_model(model, characters=WORDS, seed=seed)
        teach(model, words=WORDS, episode=episode, seed=seed, steps=_STEPS)
    rows = [{"prompt": f"{one.text} ?", "answer": str(one.value)} for one in all_sums()]
    random.Random(arguments.seed).shuffle(rows)  # noqa: S311 - no secret
    write_rows(rows[:_HELD_OUT], arguments.folder / "held-out.jsonl")
    write_rows(rows[_HELD_OUT:], arguments.folder / "train.jsonl")


if __name__ == "__main__":
    main()
