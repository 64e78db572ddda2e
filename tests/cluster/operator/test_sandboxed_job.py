"""A job whose programs mean harm, on the development node: its pod's sandbox holds them, and the pool says by what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.hostile_programs import DAEMON, FLOODS, FORBIDDEN, REFUSED, attempts
from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.kube.resources import RLJOBS, ROLLOUT_POOLS

pytestmark = pytest.mark.slow

_STEPS = 2
_STEP_S = 400.0
_SECRET = "/trimtab/secrets/nats-credentials"
WORKFLOW = """
import json, os
from pathlib import Path
from trimtab.rollout.sandbox.contract import Program, ProgramLimits
from trimtab.rollout.workflows.team import Episode, ScoredConversation, WorkflowError

GIVEN = json.loads(Path(__file__).with_name("hostile.json").read_text())
SECRETS = [Path(name).read_bytes() for name in GIVEN["secrets"]]


class Hostile:
    async def run(self, task, team):
        conversation = team.begin()
        conversation.hear(task.column("prompt"))
        await conversation.speak()
        program = Program(command=("python3", "-c", GIVEN["attempts"].replace("WORKER", str(os.getpid()))))
        ended = await team.sandbox.run(program)
        if not ended.succeeded:
            raise WorkflowError(f"{ended.end} {ended.stderr!r}")
        got = {name: what for name, what in json.loads(ended.stdout).items() if what not in GIVEN["refused"]}
        if got or any(secret in ended.stdout for secret in SECRETS):
            raise WorkflowError(f"got out: {got}")
        flood = GIVEN["floods"][task.seed % len(GIVEN["floods"])]
        await team.sandbox.run(Program(command=("python3", "-c", flood), limits=ProgramLimits(wall_s=1.0)))
        return Episode((ScoredConversation(conversation, reward=float(task.seed % 2)),))
"""


def test_programs_that_mean_harm_reach_nothing_of_the_pod(scene: Scene, node: DevelopmentNode, tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="hostile", max_steps=_STEPS)
    (tmp_path / "hostile.py").write_text(WORKFLOW)
    program = attempts(FORBIDDEN, worker=1, secret=_SECRET, port=9464, abstract="\0none")
    given = {
        "attempts": program.replace("'worker': 1", "'worker': WORKER"),
        "refused": sorted(REFUSED),
        "floods": [*FLOODS.values(), DAEMON],
        "secrets": [_SECRET],
    }
    (tmp_path / "hostile.json").write_text(json.dumps(given))
    job = in_a_cluster(file)
    job["spec"]["workflow"] = {
        "entrypoint": "hostile:Hostile",
        "source": {"path": "/quickstart"},
        "sandbox": {"memoryMib": 128, "timeoutSeconds": 60, "processes": 8, "diskMib": 8, "outputKib": 64},
    }
    scene.apply(job)
    said = scene.until(
        lambda: scene.condition(ROLLOUT_POOLS, "hostile-local", "Sandboxed"),
        lambda condition: condition.get("status") == "True",
        timeout_s=_STEP_S,
    )
    assert "landlock, seccomp" in said["message"]
    assert said["reason"] in ("AllLayersHold", "LayersMissing")
    scene.says(RLJOBS, "hostile", "Succeeded", "PoliciesTrained", timeout_s=_STEP_S)
    assert job_status(scene, "hostile")["step"] >= _STEPS
