"""The search example: its questions take two searches of its corpus, and its policy learns to make them."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from examples.curves.running import EXAMPLES
from examples.largest_digit import write_rows
from examples.search_qa.people import draw_people, question, words
from examples.tiny_model import make_word_tokenizer
from tests.support.examples import Learn
from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.loader import load_workflow
from trimtab.rollout.workflows.rehearsal import Script, rehearse


async def test_two_searches_answer_a_question_and_one_does_not(tmp_path: Path) -> None:
    people = draw_people(random.Random(3))
    write_rows([{"text": person.passage} for person in people.values()], tmp_path / "corpus.jsonl")
    manifest = yaml.safe_load((EXAMPLES / "search_qa" / "job.yaml").read_text())
    # A script's tokens are characters, not words.
    manifest["spec"]["workflow"]["args"]["max_tokens"] = 4096
    spec = WorkflowSpec.model_validate(manifest["spec"]["workflow"])
    workflow = load_workflow(spec, folder=tmp_path, roles=["searcher"])
    asked = next(person for person in people.values() if person.town != people[person.friend].town)
    friend = people[asked.friend]
    prompt = {"prompt": question(asked), "answer": friend.town}
    script = Script(
        f"<search> {asked.name} </search>", f"<search> {friend.name} </search>", f"<answer> {friend.town} </answer>"
    )
    (scored,) = (await rehearse(workflow, prompt, scripts={"searcher": script})).scored
    assert scored.reward == 1.0
    assert asked.friend in script.heard[1]
    assert friend.town in script.heard[2].removeprefix(script.heard[1])
    hasty = Script(f"<search> {asked.name} </search>", f"<answer> {asked.town} </answer>")
    (scored,) = (await rehearse(workflow, prompt, scripts={"searcher": hasty})).scored
    assert scored.reward == 0.0


def test_its_tokenizer_has_a_token_for_every_word_that_is_said(tmp_path: Path) -> None:
    make_word_tokenizer(tmp_path, words=words())
    tokenizer = Tokenizer.read(tmp_path)
    said = "where lives the friend of ada ? <search> ada </search> <information> nothing </information>"
    numbers = tokenizer.encode(said)
    assert len(numbers) == len(said.split())
    assert len(words()) - 1 not in numbers
    assert tokenizer.decode(numbers) == said


@pytest.mark.slow
def test_it_learns_what_to_search_for(learn: Learn) -> None:
    """Also for questions that it was never asked."""
    curve = learn("search_qa", steps=30).policies["searcher"]
    rewards = [point.reward for point in curve.steps]
    assert fmean(rewards[:5]) < 0.45
    assert fmean(rewards[-5:]) > fmean(rewards[:5]) + 0.15
    (scores,) = curve.scores.values()
    assert scores[-1].score > scores[0].score
