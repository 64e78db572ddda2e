"""Makes what the policy learns from: seeds of houses, and a tiny Llama that has watched somebody act in other houses
who did the right thing half of the time.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from examples.largest_digit import write_rows
from examples.taught_model import Said, teach
from examples.tiny_model import make_model, make_word_tokenizer
from trimtab.rollout.worlds.drawing import COLOURS, CONTAINERS, ROOMS, THINGS, HouseSize, draw_house
from trimtab.rollout.worlds.house import HouseWorld
from trimtab.rollout.worlds.planning import shortest_plan

SIZE = {"rooms": 3, "containers": 2, "locks": 1, "goals": 1, "others": 0, "least_steps": 5}
"""As in job.yaml."""
MAX_TURNS = 10
_HOUSES, _HELD_OUT = 128, 32
_WATCHED = 768
_STEPS = 600
_BATCH = 16
_RIGHT = 0.5
_FIXED = (
    *("Your", "task", "put", "the", "in", "You", "are", "see", "nothing", "a", "closed", "an", "open", "with", "it"),
    *("and", "Doors", "lead", "to", "locked", "takes", "key", "hold", "go", "unlock", "take", "drop", "Nothing"),
    *("happens", "Done", ".", ",", ":", "(", ")", "~"),
)
WORDS = (*ROOMS, *CONTAINERS, *COLOURS, *THINGS, *_FIXED)
"""All that is ever said; the last stands for anything else."""


def watched_episode(house_seed: int, chance: random.Random) -> list[Said]:
    house = draw_house(house_seed, HouseSize(**SIZE))
    world = HouseWorld(**SIZE, reward="goal", show_actions=False)
    said: list[Said] = [(world.reset({"house": house_seed}), False)]
    state, done = house.start, False
    while not done and len(said) < 2 * MAX_TURNS:
        right = chance.random() < _RIGHT
        action = shortest_plan(house, state)[0] if right else chance.choice(list(house.actions(state)))
        state = house.actions(state)[action]
        text, _, done = world.step(action)
        said += [(f"{action} .", True), (text, False)]
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)  # noqa: S311 - no secret
    seeds = chance.sample(range(1_000_000), _HOUSES + _HELD_OUT + _WATCHED)
    model = arguments.folder / "model"
    make_word_tokenizer(model, words=WORDS)
    make_model(model, characters=WORDS, seed=arguments.seed, context=512)
    watched: Sequence[list[Said]] = [watched_episode(seed, chance) for seed in seeds[:_WATCHED]]
    teach(
        model,
        words=WORDS,
        episode=lambda chance: chance.choice(watched),
        seed=arguments.seed,
        steps=_STEPS,
        batch=_BATCH,
    )
    rows = [{"prompt": f"house {seed}", "house": seed} for seed in seeds[_WATCHED:]]
    write_rows(rows[:_HELD_OUT], arguments.folder / "held-out.jsonl")
    write_rows(rows[_HELD_OUT:], arguments.folder / "train.jsonl")


if __name__ == "__main__":
    main()
