"""Jobs that cannot work, as new users write them: each ends by itself, with one message that names file, field or line.

What can be seen in the files is said before anything starts, and what only a pod finds out is said in the pod's words.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from transformers import GPT2Config, GPT2LMHeadModel

from tests.support.guarded_run import let_in
from tests.support.polling import eventually
from tests.support.quickstart_job import make_quickstart

NOBODY = 65532
RAISES = """
class Tool:
    async def run(self, task, team):
        return 1 / 0
"""
RETURNS_NAN = """
from trimtab.rollout.workflows.team import Episode, ScoredConversation

class Tool:
    async def run(self, task, team):
        conversation = team.begin()
        conversation.hear(task.column("prompt"))
        await conversation.speak()
        return Episode((ScoredConversation(conversation, reward=float("nan")),))
"""
HANGS = """
import asyncio

class Tool:
    async def run(self, task, team):
        await asyncio.Event().wait()
"""
BLOCKS = """
import time

class Tool:
    async def run(self, task, team):
        while True:
            time.sleep(1)
"""

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that works, to be broken in copies."""
    folder = tmp_path_factory.mktemp("whole")
    make_quickstart(folder, name="broken", max_steps=1)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "job"))


def changed(folder: Path, change: Callable[[Manifest], None]) -> Path:
    """Its manifest, changed."""
    file = folder / "job.yaml"
    manifest = yaml.safe_load(file.read_text())
    change(manifest["spec"])
    file.write_text(yaml.safe_dump(manifest))
    return file


def with_workflow(folder: Path, code: str, *, groups: int = 3) -> Path:
    """A job with this workflow and little patience."""
    (folder / "mine.py").write_text(code)

    def change(spec: Manifest) -> None:
        spec["workflow"] = {"entrypoint": "mine:Tool", "source": {"path": "."}, "episodeTimeoutSeconds": 2}
        spec["data"]["tasks"] = {"maxDeliveries": 1}
        spec["failurePolicy"] = {"failedGroups": groups}

    return changed(folder, change)


def command(file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "trimtab.cli.main", "run", str(file), *options]


def message_of(file: Path) -> str:
    """The one message with which the run ends."""
    done = subprocess.run(command(file), capture_output=True, text=True, timeout=600, check=False)
    return judged(done.returncode, done.stderr)


def judged(code: int | None, output: str) -> str:
    assert code == 1, output
    _, *messages = re.split(r"^Error: ", output, flags=re.MULTILINE)
    assert len(messages) == 1, output
    (message,) = messages
    first = message.splitlines()[0]
    assert output.count(first) == 1, f"it is said twice:\n{output}"
    assert '{"' not in output, f"raw lines of a log:\n{output}"
    assert "Traceback" not in output
    return message


def says(message: str, *parts: str) -> None:
    for part in parts:
        assert part in message, f"{part!r} is not in:\n{message}"


def test_a_class_that_is_missing(folder: Path) -> None:
    file = with_workflow(folder, "class Toll: ...")
    says(message_of(file), "spec.workflow.entrypoint 'mine:Tool'", f"{folder / 'mine.py'} has no class Tool")


@pytest.mark.slow
def test_no_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "model" / name).unlink()
    says(message_of(folder / "job.yaml"), "spec.policies[solver].model.uri", str(folder / "model"), "no tokenizer")


@pytest.mark.slow
def test_weights_that_may_not_be_read(folder: Path) -> None:
    """By somebody who may do anything else with the folder."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    let_in(folder.parent)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    weights = folder / "model" / "model.safetensors"
    os.chown(weights, 0, 0)
    weights.chmod(0o600)
    # Python itself may lie where nobody else may go: what is needed is imported before.
    imports = "import os, sys; from pathlib import Path; from trimtab.cli.run import read_job, run"
    become = f"read_job(Path(sys.argv[1])); os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
    code = f"{imports}; {become}; run(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "job.yaml")], capture_output=True, text=True, timeout=600, check=False
    )
    message = judged(done.returncode, done.stderr)
    says(message, "spec.policies[solver].model.uri", f"uid {NOBODY} may not read {weights}", f"chmod o+r {weights}")


@pytest.mark.slow
def test_prompts_without_the_column(folder: Path) -> None:
    file = changed(folder, lambda spec: spec["data"]["prompts"][0].update(promptColumn="question"))
    says(message_of(file), "spec.data.prompts[train].jsonl.uri", "prompts.jsonl, line 1", "'question'")


@pytest.mark.slow
def test_an_empty_file_of_prompts(folder: Path) -> None:
    (folder / "prompts.jsonl").write_text("")
    says(message_of(folder / "job.yaml"), "spec.data.prompts[train].jsonl.uri", "prompts.jsonl holds no prompt")


@pytest.mark.slow
def test_bad_json_in_the_middle_of_a_long_file(folder: Path) -> None:
    """Where only the dataflow looks."""
    with (folder / "prompts.jsonl").open("a") as prompts:
        prompts.write('{"prompt": "1,2,3>", "answer": "3"}\n' * 600 + "not JSON\n")
    says(message_of(folder / "job.yaml"), "broken-dataflow-0: ", "prompts.jsonl, line 1501: not JSON")


@pytest.mark.slow
def test_arguments_that_do_not_fit(folder: Path) -> None:
    file = changed(folder, lambda spec: spec["workflow"].update(args={"tool_secconds": 1}))
    message = message_of(file)
    says(message, "broken-local-rollout-0: worker exited with 78: workflow.args do not fit", "tool_secconds")


@pytest.mark.slow
def test_a_family_that_the_engine_cannot_serve(folder: Path) -> None:
    tiny = GPT2Config(vocab_size=15, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(tiny).save_pretrained(folder / "model")
    says(message_of(folder / "job.yaml"), "model", "gpt2")


@pytest.mark.slow
def test_a_workflow_that_always_raises(folder: Path) -> None:
    """And what the run says to look at can be looked at, as it was printed, when the job is over."""
    done = subprocess.run(
        command(with_workflow(folder, RAISES)), capture_output=True, text=True, timeout=600, check=False
    )
    message = judged(done.returncode, done.stderr)
    says(
        message,
        "the first 3 prompt groups all failed at mine.py, line 4, in run",
        "ZeroDivisionError: division by zero",
    )
    printed = re.search(r"given up; this says why: (.*)", done.stderr)
    assert printed is not None, done.stderr
    looked = subprocess.run(shlex.split(printed[1]), capture_output=True, text=True, timeout=600, check=False)
    assert looked.returncode == 0, looked.stderr
    says(looked.stdout, "t0", "workflow-error", "ZeroDivisionError: division by zero")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(RETURNS_NAN, ("mine.py, line 5, in run", "not a finite number: nan"), id="returns NaN"),
        pytest.param(HANGS, ("mine.py, line 6, in run", "not finished within 2 s"), id="hangs"),
        pytest.param(BLOCKS, ("mine.py, line 7, in run", "blocks the event loop"), id="blocks"),
    ],
)
def test_a_workflow_that_never_works(folder: Path, code: str, said: tuple[str, ...]) -> None:
    says(message_of(with_workflow(folder, code)), *said)


@contextmanager
def running(file: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as written:
        process = subprocess.Popen(command(file), stdout=written, stderr=written, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(600)


def engines_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "trimtab.rollout.engines.builtin" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.slow
async def test_a_port_that_somebody_took(folder: Path, tmp_path: Path) -> None:
    """While the engine still imports what it needs."""
    with running(folder / "job.yaml", tmp_path / "output") as process:
        await eventually(lambda: bool(engines_of(process)), timeout_s=60.0, interval_s=0.01, ended=process.poll)
        words = engines_of(process)[0].cmdline()
        port = next(int(word.removeprefix("--port=")) for word in words if word.startswith("--port="))
        with socket.create_server(("127.0.0.1", port)):
            await eventually(lambda: process.poll() is not None, timeout_s=60.0)
    message = judged(process.returncode, (tmp_path / "output").read_text())
    says(message, "broken-local-rollout-0: ", "engine-solver exited with 78: pools[].engine: its port is taken")


@pytest.mark.slow
async def test_what_was_given_up_can_be_looked_at_while_the_job_runs_on(folder: Path, tmp_path: Path) -> None:
    """It was told to go on. Another run of it is refused meanwhile, and takes nothing away."""
    file, output = with_workflow(folder, RAISES, groups=0), tmp_path / "output"
    with running(file, output) as process:

        def printed() -> re.Match[str] | None:
            return re.search(r"given up; this says why: (.*)\n", output.read_text())

        await eventually(lambda: printed() is not None, timeout_s=60.0, ended=process.poll)
        told = printed()
        assert told is not None
        words = shlex.split(told[1])
        looked = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=600)
        assert looked.returncode == 0, looked.stderr
        says(looked.stdout, "ZeroDivisionError: division by zero")
        before = sorted(path.name for path in (folder / ".trimtab" / "broken").iterdir())
        for options in ((), ("--fresh",)):
            again = await asyncio.to_thread(
                subprocess.run, command(file, *options), capture_output=True, text=True, timeout=600
            )
            says(judged(again.returncode, again.stderr), "broken is running already", f"process {process.pid} ")
        assert sorted(path.name for path in (folder / ".trimtab" / "broken").iterdir()) == before
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        await eventually(lambda: process.poll() is not None, timeout_s=60.0)
    assert process.returncode == 130, output.read_text()


@pytest.mark.slow
async def test_a_trainer_that_died_and_came_back_is_mentioned(folder: Path, tmp_path: Path) -> None:
    file, output = changed(folder, lambda spec: spec.update(maxSteps=30)), tmp_path / "output"
    with running(file, output) as process:
        await eventually(lambda: " step " in output.read_text(), timeout_s=60.0, ended=process.poll)
        trainers = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "trimtab.trainer.launch" in child.cmdline()
        ]
        trainers[0].kill()
        await eventually(lambda: process.poll() is not None, timeout_s=60.0)
    text = output.read_text()
    assert process.returncode == 0, text
    assert text.count("broken-solver-trainer-0 died and its trainer goes back to the checkpoint") == 1
    says(text, "trainer was killed by SIGKILL", "restarts")
    story = [json.loads(line)["what"] for line in (folder / ".trimtab/broken/history.jsonl").read_text().splitlines()]
    assert story.count("died") == 1
