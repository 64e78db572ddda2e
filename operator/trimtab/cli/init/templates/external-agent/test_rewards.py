"""The reward of what an agent may print, and the agent as a worker runs it, with a line in place of a model."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

from rewards import score

from trimtab.rollout.workflows.external_agent import ExternalAgent
from trimtab.rollout.workflows.rehearsal import CHAT, Script, rehearse

PROMPT = {"prompt": "What is 17 + 25?", "answer": "42"}


def test_the_last_number_counts() -> None:
    for output, reward in (("17 + 25 = 42", 1.0), ("42, or 43", 0.0), ("", 0.0)):
        assert score(SimpleNamespace(prompt=PROMPT, output=output)) == reward


def test_what_the_agent_asks_and_prints_is_trained() -> None:
    agent = ExternalAgent(command=[sys.executable, "agent.py"], reward="rewards:score", containment="best-effort")
    agent.read_from(Path(__file__).parent)
    script = Script("It is 42.", tokenizer=CHAT)
    episode = asyncio.run(rehearse(agent, PROMPT, scripts={"solver": script}))
    assert [one.reward for one in episode.scored] == [1.0]
    assert script.heard == ["user\nWhat is 17 + 25?\nassistant\n"]
