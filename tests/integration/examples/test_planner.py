"""The planner example: a planner that was shown little but the form learns what to say in it."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from examples.curves.running import EXAMPLES
from examples.planner.make import judged_episode, planned_episode
from examples.planner.sums import WORDS, all_sums
from examples.tiny_model import make_word_tokenizer
from tests.support.examples import Learn
from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.loader import load_workflow
from trimtab.rollout.workflows.rehearsal import Script, rehearse


async def test_what_they_were_shown_is_what_they_hear_in_the_job() -> None:
    manifest = yaml.safe_load((EXAMPLES / "planner" / "job.yaml").read_text())
    # A script's tokens are characters, not words.
    manifest["spec"]["workflow"]["args"]["max_tokens"] = 4096
    spec = WorkflowSpec.model_validate(manifest["spec"]["workflow"])
    workflow = load_workflow(spec, folder=EXAMPLES / "planner", roles=["planner", "verifier"])
    scripts = {
        "planner": Script("<calculator> 3 + 4 </calculator>", "<answer> 7 </answer>"),
        "verifier": Script("ACCEPT"),
    }
    episode = await rehearse(workflow, {"prompt": "3 + 4 ?", "answer": "7"}, scripts=scripts)
    assert [one.reward for one in episode.scored] == [1.0, 1.0]
    assert scripts["planner"].heard[1].split() == [
        "3",
        "+",
        "4",
        "?<calculator>",
        "3",
        "+",
        "4",
        "</calculator>",
        "result",
        "7",
    ]
    (judged,) = scripts["verifier"].heard
    assert judged.split() == ["3", "+", "4", "?", "1.", "calculator:", "3", "+", "4", "gave:", "7", "answer", "7", "?"]


def test_their_tokenizer_has_a_token_for_every_word_that_is_said(tmp_path: Path) -> None:
    make_word_tokenizer(tmp_path, words=WORDS)
    tokenizer = Tokenizer.read(tmp_path)
    chance = random.Random(0)
    for episode in (planned_episode, judged_episode):
        for _ in range(50):
            for text, _ in episode(chance):
                assert len(WORDS) - 1 not in tokenizer.encode(text)


def test_every_answer_is_a_digit() -> None:
    assert {one.value for one in all_sums()} == set(range(10))


@pytest.mark.slow
def test_the_planner_learns_beside_a_verifier_that_learns_too(learn: Learn) -> None:
    """What the verifier sees changes as the planner gets better, so in so few steps it goes up and down."""
    run = learn("planner", steps=25)
    rewards = [point.reward for point in run.policies["planner"].steps]
    assert fmean(rewards[-5:]) > fmean(rewards[:5]) + 0.2
    assert len(run.policies["verifier"].steps) == 25
