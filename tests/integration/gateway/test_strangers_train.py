"""A job whose episodes are of four libraries that nobody here wrote, unmodified, takes steps with the real trainer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.curves.record import Run
from examples.curves.running import run_manifest
from tests.support.gateway import strangers
from tests.support.gateway.agent_environment import agents_packages, agents_python
from tests.support.gateway.chat_model import write_model
from tests.support.polling import patiently

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

LIBRARIES = (*strangers.COMMANDS, "verifiers")
EPISODES_OF_A_PROMPT = 2
STEPS = 2
DEADLINE_S = 500.0

WORKFLOW = """
import random
import sys

from trimtab.rollout.workflows.external_agent import ExternalAgent
from trimtab.rollout.workflows.verifiers_environment import VerifiersEnvironment


def drawn(work):
    return random.random()


class ByLibrary:
    def __init__(self, *, python, packages, commands):
        sys.path.append(packages)
        self._of = {{
            name: ExternalAgent(
                command=[python, f"with_{{name}}.py"], reward="by_library:drawn", time_limit_s={deadline_s}
            )
            for name in commands
        }} | {{"verifiers": VerifiersEnvironment(environment="guessing_game")}}

    def read_from(self, folder):
        for workflow in self._of.values():
            if isinstance(workflow, ExternalAgent):
                workflow.read_from(folder)

    async def run(self, task, team):
        episode = await self._of[task.column("library")].run(task, team)
        with open({log!r}, "a") as log:
            log.write(task.column("library") + "\\n")
        return episode
"""


def manifest() -> dict[str, Any]:
    args = {"python": str(agents_python()), "packages": str(agents_packages()), "commands": list(strangers.COMMANDS)}
    return {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "strangers"},
        "spec": {
            "maxSteps": STEPS,
            "workflow": {"entrypoint": "by_library:ByLibrary", "source": {"path": "."}, "args": args},
            "data": {
                "prompts": [{"name": "train", "jsonl": {"uri": "train.jsonl"}}],
                "groupSize": EPISODES_OF_A_PROMPT,
                "batchSize": EPISODES_OF_A_PROMPT * len(LIBRARIES),
                "maxStaleness": 0,
            },
            "policies": [
                {
                    "name": "solver",
                    "model": {"uri": "model"},
                    "algorithm": {"name": "grpo", "optimizer": {"learningRate": 1.0e-3}},
                    "sampling": {"maxTokens": 256},
                    "trainer": {"dtype": "float32", "gradientCheckpointing": False},
                }
            ],
            "pools": [{"name": "local", "replicas": 1, "maxConcurrency": 4, "engine": {"name": "builtin"}}],
        },
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", seed=0)
    source = WORKFLOW.format(deadline_s=DEADLINE_S, log=str(tmp_path / "episodes.log"))
    (tmp_path / "by_library.py").write_text(source)
    (tmp_path / "guessing_game.py").write_text(strangers.VERIFIERS)
    for name, code in strangers.COMMANDS.items():
        (tmp_path / f"with_{name}.py").write_text(code)
    prompts = [strangers.PROMPT | {"prompt": library, "library": library} for library in LIBRARIES]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest()))
    return tmp_path


def test_a_tiny_model_is_trained_by_all_of_them(folder: Path) -> None:
    async def in_time() -> Run:
        async with patiently(DEADLINE_S):
            return await run_manifest(folder / "job.yaml", seed=0)

    run = asyncio.run(in_time())
    assert [point.step for point in run.policies["solver"].steps] == list(range(STEPS))
    assert set((folder / "episodes.log").read_text().split()) == set(LIBRARIES)
