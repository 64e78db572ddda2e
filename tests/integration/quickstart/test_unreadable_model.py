"""Every pod that reads a model or prompts that are somebody else's names file and uid, and does not come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guarded_run import let_in
from tests.support.quickstart_job import make_quickstart

NOBODY = 65532
"""As whom pods run."""

_PODS = f"""
import asyncio, io, json, os, sys
from contextlib import redirect_stderr
from pathlib import Path
import torch
from trimtab.dataflow.prompts.sources import read_prompts
from trimtab.fabric.pod import JobMisconfigured, read_job
from trimtab.rollout.engines.builtin.__main__ import run as engine
from trimtab.rollout.worker.served_policy import read_tokenizer
from trimtab.trainer.__main__ import _learner as learner
from trimtab.trainer.losses.registry import recipe_of

file = Path(sys.argv[1])
job, folder = read_job(file), file.parent
policy = job.spec.policies[0]
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})

def said(part):
    try:
        part()
    except JobMisconfigured as error:
        return str(error)

def engine_said():
    sys.argv = ["engine", f"--model-path={{folder / policy.model.uri}}", "--port=1"]
    with redirect_stderr(io.StringIO()) as text:
        try:
            engine()
        except SystemExit as ended:
            return f"{{ended.code}}: {{text.getvalue()}}"

print(json.dumps({{
    "trainer": said(lambda: learner(policy, recipe_of(policy.algorithm), folder=folder, device=torch.device("cpu"))),
    "rollout": said(lambda: read_tokenizer(policy, folder=folder)),
    "dataflow": said(lambda: asyncio.run(read_prompts(job, folder=folder, object_store=None, scratch=None))),
    "engine": engine_said(),
}}))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    folder = tmp_path_factory.mktemp("theirs")
    let_in(folder)
    made = make_quickstart(folder, name="unreadable", max_steps=1)
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o004, f"{path} is made for whoever runs the pods"
    return made


@pytest.mark.slow
def test_file_and_uid_are_named_by_all_of_them(file: Path) -> None:
    weights, prompts = file.parent / "model" / "model.safetensors", file.parent / "prompts.jsonl"
    weights.chmod(0o600)
    prompts.chmod(0o600)
    done = subprocess.run([sys.executable, "-c", _PODS, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for part, field, path in (
        ("trainer", "policies[solver].model.uri: ", weights),
        ("rollout", "policies[solver].model.uri: ", weights),
        ("dataflow", "data.prompts[train].jsonl.uri: ", prompts),
        ("engine", "78: policies[].model.uri, served by pools[].engine: ", weights),
    ):
        assert said[part].startswith(f"{field}uid {NOBODY} may not read {path} "), said[part]
