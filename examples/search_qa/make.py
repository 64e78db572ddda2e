"""Makes what the policy learns from: a corpus, questions about it, and a tiny Llama that knows how to search and to
answer, but seldom what.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from examples.largest_digit import write_rows
from examples.search_qa.people import PEOPLE, TOWNS, draw_people, question, words
from examples.taught_model import Said, teach
from examples.tiny_model import make_model, make_word_tokenizer

_HELD_OUT = 24
_STEPS = 800
_RIGHT = 0.65
"""How often a search or an answer that it is shown is the right one."""


def shown_episode(chance: random.Random) -> Sequence[Said]:
    """An episode of other people than those of the corpus: what is in the corpus nobody has told it."""
    people = draw_people(chance)
    asked = people[chance.choice(PEOPLE)]
    first = people[asked.name if chance.random() < _RIGHT else chance.choice(PEOPLE)]
    second = people[first.friend if chance.random() < _RIGHT else chance.choice(PEOPLE)]
    answer = second.town if chance.random() < _RIGHT else chance.choice(TOWNS)
    return (
        (question(asked), False),
        (f"<search> {first.name} </search>", True),
        (f"<information> {first.passage} </information>", False),
        (f"<search> {second.name} </search>", True),
        (f"<information> {second.passage} </information>", False),
        (f"<answer> {answer} </answer>", True),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model = arguments.folder / "model"
    make_word_tokenizer(model, words=words())
    make_model(model, characters=words(), seed=arguments.seed, context=128)
    teach(model, words=words(), episode=shown_episode, seed=arguments.seed, steps=_STEPS)
    chance = random.Random(arguments.seed)  # noqa: S311 - no secret
    people = draw_people(chance)
    write_rows([{"text": person.passage} for person in people.values()], arguments.folder / "corpus.jsonl")
    rows = [{"prompt": question(person), "answer": people[person.friend].town} for person in people.values()]
    chance.shuffle(rows)
    write_rows(rows[:_HELD_OUT], arguments.folder / "held-out.jsonl")
    write_rows(rows[_HELD_OUT:], arguments.folder / "train.jsonl")


if __name__ == "__main__":
    main()
