"""Agents of libraries that others wrote, as docs/agents.md has them: with a command, in the worker, and by adapter."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.gateway.agent_environment import agents_packages, agents_python
from tests.support.gateway.agent_team import scripted_team
from tests.support.gateway.tokenizers import tokenizer_of
from trimtab.fabric.wire.spans import Producer
from trimtab.rollout.workflows.external_agent import ExternalAgent
from trimtab.rollout.workflows.forest import forest_of
from trimtab.rollout.workflows.rehearsal import Script
from trimtab.rollout.workflows.team import Assignment, Episode, PromptUnusable, Workflow
from trimtab.rollout.workflows.verifiers_environment import EnvironmentFailed, VerifiersEnvironment

# Libraries of others warn of what is theirs.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[3] / "docs" / "agents.md"
PROMPT = {"question": "How many letters has harbour?", "answer": "7"}
TOOLS = tokenizer_of("qwen2.5")


def program(name: str) -> str:
    """The block of the page that begins with this name."""
    (found,) = re.findall(
        rf"^```python\n(# {name}.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return str(found)


def says(name: str, **arguments: Any) -> str:
    """A call of a tool, as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def run(workflow: Workflow, *lines: str, prompt: dict[str, Any] = PROMPT) -> tuple[Episode, Script]:
    script = Script(*lines, tokenizer=TOOLS)
    task = Assignment(prompt=prompt, seed=0, request_id="t.0", deadline_s=300)
    async with scripted_team(task, {"solver": script}, tokenizer=TOOLS) as team:
        return await workflow.run(task, team), script


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries in this process, behind what is installed here."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(agents_packages())])


@pytest.mark.parametrize(
    ("file", "last", "rows"),
    [
        ("openai_agents.py", "It has 7.", 1),
        ("langchain_agent.py", "It has 7.", 1),
        # It sends its calls back in words of its own, which nobody sampled.
        ("smolagents_agent.py", says("final_answer", answer="It has 7."), 2),
    ],
)
async def test_an_agent_of_a_library_calls_its_tool_and_is_trained_on_what_was_sampled(
    file: str, last: str, rows: int, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(program(file))
    agent = ExternalAgent(command=[str(agents_python()), file], reward="tests.support.gateway.rewards:said_so")
    agent.read_from(tmp_path)
    episode, script = await run(agent, says("letters", word="harbour"), last)
    assert [scored.reward for scored in episode.scored] == [1.0] * rows
    learnt = [
        tuple(row.token_ids[:end])
        for row in forest_of("solver", episode.scored).rows
        for end, span in zip(accumulate(span.length for span in row.spans), row.spans, strict=True)
        if span.producer is Producer.MODEL
    ]
    sampled = [
        (*prompt, *TOOLS.encode(line))
        for prompt, line in zip(script.prompts, (says("letters", word="harbour"), last), strict=True)
    ]
    assert learnt == sampled


@pytest.mark.usefixtures("in_worker")
@pytest.mark.parametrize("name", ["AgentsSDK", "LangChain"])
async def test_an_agent_of_a_library_in_the_worker(name: str) -> None:
    module = ModuleType("my_workflows")
    exec(compile(program("my_workflows.py"), str(PAGE), "exec"), vars(module))
    episode, _ = await run(getattr(module, name)(), "It has 7.")
    (scored,) = episode.scored
    assert scored.reward == 1.0


ENVIRONMENT = """
import verifiers as vf
from datasets import Dataset

async def right(completion, answer, **_):
    return float(answer in completion[-1]["content"])

async def turns(state, **_):
    return float(len(state["trajectory"]))

class Guessing(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **_):
        if self.broken:
            raise vf.ToolError("the box is stuck")
        return [{"role": "user", "content": "Wrong. Again!"}]

    @vf.stop
    async def guessed(self, state, **_):
        steps = state["trajectory"]
        return bool(steps) and state["answer"] in steps[-1]["completion"][-1]["content"]

def load_environment(broken=False):
    rows = [{"question": f"Guess {number}", "answer": str(number)} for number in range(10)]
    rubric = vf.Rubric(funcs=[right], weights=[1.0])
    rubric.add_metric(turns)
    made = Guessing(dataset=Dataset.from_list(rows), rubric=rubric, system_prompt="Guess.", max_turns=3)
    made.broken = broken
    return made
"""


@pytest.fixture
def guessing(in_worker: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "guessing.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "guessing"
    sys.modules.pop("guessing", None)


async def test_an_environment_of_verifiers_plays_and_its_rubric_rewards(guessing: str) -> None:
    workflow = VerifiersEnvironment(environment=guessing)
    episode, script = await run(workflow, "4", "7 it is", prompt={"example": 7})
    (scored,) = episode.scored
    assert scored.reward == 1.0
    assert scored.reward_parts["turns"] == 2.0
    assert scored.conversation.turns == 2
    assert "Guess." in script.heard[0]
    assert "Guess 7" in script.heard[0]
    assert "Wrong. Again!" in script.heard[1]


async def test_a_row_for_verifiers_may_come_from_the_job(guessing: str) -> None:
    row = {"prompt": [{"role": "user", "content": "Now 12"}], "answer": "12"}
    episode, _ = await run(VerifiersEnvironment(environment=guessing), "1", "2", "3", prompt=row)
    assert [scored.reward for scored in episode.scored] == [0.0]


async def test_an_environment_that_fails_is_no_zero(guessing: str) -> None:
    workflow = VerifiersEnvironment(environment=guessing, environment_args={"broken": True})
    with pytest.raises(EnvironmentFailed, match="the box is stuck"):
        await run(workflow, "4", prompt={"example": 7})


@pytest.mark.parametrize("prompt", [{"example": 10}, {"example": "7"}, {"question": "?"}])
async def test_a_row_that_verifiers_cannot_use_is_refused_by_name(guessing: str, prompt: dict[str, Any]) -> None:
    with pytest.raises(PromptUnusable, match="example"):
        await run(VerifiersEnvironment(environment=guessing), prompt=prompt)
