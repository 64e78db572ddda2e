"""A whole job whose rewards come from programs, by `trimtab run`: they run beside the worker and see nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.quickstart_job import make_quickstart, trained_steps

_STEPS = 2
WORKFLOW = '''
import json
from trimtab.rollout.sandbox.contract import Program
from trimtab.rollout.workflows.team import Episode, ScoredConversation, WorkflowError

LOOK = """
import json, os, sys
seen = sorted(os.environ)
try:
    os.listdir({folder!r})
    seen.append("the job's folder")
except OSError:
    pass
print(json.dumps([len(sys.stdin.read()), seen]))
"""


class Executing:
    def read_from(self, folder):
        self._folder = str(folder)

    async def run(self, task, team):
        conversation = team.begin()
        conversation.hear(task.column("prompt"))
        said = await conversation.speak()
        program = Program(
            command=("python3", "main.py"),
            files={"main.py": LOOK.format(folder=self._folder).encode()},
            stdin=said.encode(),
        )
        ended = await team.sandbox.run(program)
        if not ended.succeeded:
            raise WorkflowError(f"{ended.end} {ended.stderr!r}")
        length, seen = json.loads(ended.stdout)
        if seen != ["HOME", "LANG", "PATH", "TMPDIR"]:
            raise WorkflowError(f"a program saw {seen}")
        return Episode((ScoredConversation(conversation, reward=1.0 / (1.0 + length)),))
'''


@pytest.mark.slow
def test_a_job_learns_from_what_programs_say(tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="executing", max_steps=_STEPS, batchSize=32)
    (tmp_path / "executing.py").write_text(WORKFLOW)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["workflow"] = {
        "entrypoint": "executing:Executing",
        "source": {"path": "."},
        "sandbox": {"memoryMib": 128, "timeoutSeconds": 60, "concurrency": 4},
    }
    file.write_text(yaml.safe_dump(manifest))
    steps = trained_steps(file)
    assert len(steps) == _STEPS
    logs = list(tmp_path.rglob("*.sandbox.log"))
    assert logs, "no sandbox ran"
    assert "sandbox_ready" in logs[0].read_text()
