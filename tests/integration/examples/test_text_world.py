"""The text world example: its words are all the house ever says, and its policy gets further the longer it learns."""

from __future__ import annotations

import random
import re
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from examples.curves.running import EXAMPLES
from examples.text_world.make import MAX_TURNS, SIZE, WORDS, watched_episode
from examples.tiny_model import WORD, make_word_tokenizer
from tests.support.examples import Learn
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.worlds.house import HouseWorld, chosen_action


def test_what_was_watched_is_what_the_job_plays() -> None:
    arguments = yaml.safe_load((EXAMPLES / "text_world" / "job.yaml").read_text())["spec"]["workflow"]["args"]
    assert arguments["environment_args"] == {**SIZE, "show_actions": False}
    assert arguments["max_turns"] == MAX_TURNS


def test_its_tokenizer_knows_every_word_of_the_house(tmp_path: Path) -> None:
    make_word_tokenizer(tmp_path, words=WORDS)
    tokenizer = Tokenizer.read(tmp_path)
    chance = random.Random(0)
    for seed in range(20):
        for text, _ in watched_episode(seed, chance):
            numbers = tokenizer.encode(text)
            assert [WORDS[number] for number in numbers] == re.findall(WORD, text)
            assert len(WORDS) - 1 not in numbers


def test_an_action_of_its_tokenizer_is_one_of_the_house(tmp_path: Path) -> None:
    make_word_tokenizer(tmp_path, words=WORDS)
    tokenizer = Tokenizer.read(tmp_path)
    world = HouseWorld(**SIZE, reward="goal", show_actions=False)
    world.reset({"house": 1})
    action = world.available_actions[0]
    assert chosen_action(tokenizer.decode(tokenizer.encode(f"{action}."))) == action


@pytest.mark.slow
def test_it_gets_further_the_longer_it_learns(learn: Learn) -> None:
    """Houses differ, and so do steps: means over many of them tell. With this seed it gains 0.15 in its first steps."""
    run = learn("text_world", steps=20, evaluation={"everySteps": 1000})
    rewards = [point.reward for point in run.policies["player"].steps]
    assert fmean(rewards[-8:]) > fmean(rewards[:5]) + 0.05
