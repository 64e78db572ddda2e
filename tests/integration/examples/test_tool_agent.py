"""The agent of the example, which nobody rewrote: as a command, in the worker, and as it learns."""

from __future__ import annotations

import sys
from statistics import fmean
from typing import Any

import pytest

from examples.curves.running import EXAMPLES
from examples.tool_agent import make
from examples.tool_agent.rewards import worth
from tests.support.examples import Learn
from tests.support.gateway.agent_team import scripted_team
from trimtab.fabric.plugins import find_class
from trimtab.fabric.wire.spans import Producer
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.external_agent import ExternalAgent
from trimtab.rollout.workflows.forest import forest_of
from trimtab.rollout.workflows.rehearsal import Script
from trimtab.rollout.workflows.team import Assignment, Workflow

FOLDER = EXAMPLES / "tool_agent"
PROMPT = {"prompt": "3", "boxes": "3012"}
CALL = make.CALL + make.ENDS[3]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    make.make_tokenizer(folder)
    return Tokenizer.read(folder)


def in_process() -> Workflow:
    kind: type[Workflow] = find_class("in_process:InProcess", field="workflow", folder=FOLDER)
    return kind()


def as_command() -> Workflow:
    find_class("rewards:of_output", field="reward", folder=FOLDER)
    return ExternalAgent(command=[sys.executable, str(FOLDER / "agent.py")], reward="rewards:of_output")


@pytest.mark.parametrize("workflow", [in_process, as_command])
async def test_what_the_agent_had_sampled_is_one_row(tokenizer: Tokenizer, workflow: Any) -> None:
    """Its call, what the tool answered and what it said then, token by token."""
    task = Assignment(prompt=PROMPT, seed=0, request_id="t.0", deadline_s=300)
    script = Script(f"{CALL}<end>", "2<end>", tokenizer=tokenizer)
    async with scripted_team(task, {"solver": script}, tokenizer=tokenizer) as team:
        episode = await workflow().run(task, team)
    (row,) = forest_of("solver", episode.scored).rows
    assert row.reward == 1.0
    shown = f"<tools><user>3<end><assistant>{CALL}<end><tool>2<end><assistant>2<end>"
    assert list(row.token_ids) == tokenizer.encode(shown)
    sampled = [span.length for span in row.spans if span.producer is Producer.MODEL]
    assert sampled == [3, 2]


@pytest.mark.parametrize(
    ("opened", "answer", "reward"),
    [
        ([], "", 0.0),
        ([], "2", 0.0),
        ([], "<tool_call>{3", 0.1),
        ([], "<tool_call>{<tool_call>{", 0.0),
        ([2], "2", 0.3),
        ([2], "1", 0.7),
        ([9], "2", 0.3),
        ([3, 3], "1", 0.2),
        ([2, 3], "2", 0.6),
        ([3], "1", 0.6),
        ([3], "22", 0.8),
        ([3], "2", 1.0),
    ],
)
def test_only_the_right_answer_from_the_right_box_is_worth_everything(
    opened: list[int], answer: str, reward: float
) -> None:
    assert worth(PROMPT, {"opened": opened, "answer": answer}) == pytest.approx(reward)


@pytest.mark.slow
def test_it_learns_to_call_its_tool(learn: Learn) -> None:
    """More than 0.1 is only to be had with a call."""
    run = learn("tool_agent", steps=30)
    rewards = [point.reward for point in run.policies["solver"].steps]
    assert fmean(rewards[:3]) < 0.1
    assert fmean(rewards[-5:]) > 0.12


@pytest.mark.slow
def test_it_is_trained_as_a_command(learn: Learn) -> None:
    arguments = {"command": [sys.executable, str(FOLDER / "agent.py")], "reward": "rewards:of_output"}
    run = learn(
        "tool_agent",
        steps=1,
        workflow={"entrypoint": "trimtab.rollout.workflows.external_agent:ExternalAgent", "args": arguments},
        data={"groupSize": 4, "batchSize": 8},
        evaluation={"everySteps": 1000},
    )
    assert len(run.policies["solver"].steps) == 1
