"""`trimtab gateway`: the openai library asks a real engine through it, and it says what would have been trained."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
import yaml
from click.testing import CliRunner

from examples.curves.running import EXAMPLES
from examples.tiny_model import make_model
from examples.tool_agent import make
from examples.tool_agent.agent import TOOLS
from trimtab.cli.main import main

FOLDER = EXAMPLES / "tool_agent"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    make.make_tokenizer(tmp_path / "model")
    make.make_prompts(tmp_path, seed=0)
    shutil.copy(FOLDER / "job.yaml", tmp_path)
    return tmp_path / "job.yaml"


@contextmanager
def trying(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The command, once it answers, and the variables that it has printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab.cli.main", "gateway", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        yield process, dict(shlex.split(line)[1].split("=", 1) for line in lines if line)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert "Traceback" not in told
    return told


def ask(variables: dict[str, str], *, turns: int) -> None:
    """A conversation in which everything is sent back, with a temperature that the policy does not take."""
    with openai.OpenAI(
        base_url=variables["OPENAI_BASE_URL"], api_key=variables["OPENAI_API_KEY"], max_retries=0, timeout=60
    ) as client:
        assert [card.id for card in client.models.list()] == ["solver"]
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "3"}]
        for _ in range(turns):
            completion = client.chat.completions.create(model="solver", messages=messages, temperature=0.5)
            said = completion.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "1"}]
        streamed = client.chat.completions.create(model="solver", messages=messages, tools=TOOLS, stream=True)
        assert any(chunk.choices[0].finish_reason for chunk in streamed)
        with pytest.raises(openai.NotFoundError, match="solver"):
            client.chat.completions.create(model="gpt-4o", messages=messages)


@pytest.mark.slow
def test_an_agent_is_tried_with_the_models_of_a_manifest(manifest: Path) -> None:
    make_model(manifest.parent / "model", characters=make.PIECES, end=0, seed=0)
    with trying(str(manifest)) as (process, variables):
        assert variables["ANTHROPIC_BASE_URL"] + "/v1" == variables["OPENAI_BASE_URL"]
        ask(variables, turns=2)
        told = ended(process)
    requests = [line for line in told.splitlines() if line.startswith("solver: ")]
    assert len(requests) == 3
    assert "0 of them known" in requests[0]
    assert "1 echoed" in requests[1]
    assert "1 overridden" in requests[1]
    assert "2 unmatched" in requests[2]
    assert "solver: 2 rows" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "solver"], "give one of the policies solver and a URL"),
        (["--engine", "judge=http://127.0.0.1:1"], "give one of the policies solver and a URL"),
        (["--engine", "solver=http://127.0.0.1:1"], "start it first"),
        (["--state-folder", "."], "name it with --job"),
        (["--job", "tool-agent"], "TRIMTAB_OBJECT_STORE__BUCKET"),
    ],
)
def test_what_cannot_be_tried_is_named(manifest: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["gateway", str(manifest), *arguments])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_a_model_that_is_not_there_is_named(manifest: Path) -> None:
    job = yaml.safe_load(manifest.read_text())
    job["spec"]["policies"][0]["model"]["uri"] = "nowhere"
    manifest.write_text(yaml.safe_dump(job))
    result = CliRunner().invoke(main, ["gateway", str(manifest)])
    assert result.exit_code == 1
    assert "spec.policies[solver].model.uri" in result.output


@pytest.mark.slow
def test_an_engine_that_ends_is_told(manifest: Path) -> None:
    """The model has no weights."""
    (manifest.parent / "model" / "config.json").write_text("{}")
    result = CliRunner().invoke(main, ["gateway", str(manifest)])
    assert result.exit_code == 1
    assert "the engine of policy solver ended with" in result.output


@pytest.mark.slow
def test_an_agent_is_tried_with_the_newest_weights_of_a_running_job(manifest: Path) -> None:
    folder = manifest.parent
    make_model(folder / "model", characters=make.PIECES, end=0, seed=0)
    for module in ("agent.py", "in_process.py", "rewards.py"):
        shutil.copy(FOLDER / module, folder)
    state = folder / ".trimtab" / "tool-agent"
    job = subprocess.Popen(
        [sys.executable, "-m", "trimtab.cli.main", "run", str(manifest)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until_published(job, state / "logs")
        elsewhere = ["gateway", str(manifest), "--job", "another", "--state-folder", str(state)]
        refused = CliRunner().invoke(main, elsewhere)
        assert refused.exit_code == 1
        assert "TRIMTAB_OBJECT_STORE__PREFIX" in refused.output
        with trying(str(manifest), "--job", "tool-agent", "--state-folder", str(state)) as (process, variables):
            ask(variables, turns=1)
            told = ended(process)
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(120)
    assert re.search(r"# starting solver with version \d+ of epoch \d+", told)


def _until_published(job: subprocess.Popen[bytes], logs: Path) -> None:
    end = time.monotonic() + 300
    while not any("weights_published" in log.read_text() for log in logs.glob("*trainer.log")):
        assert job.poll() is None, "the job has ended"
        assert time.monotonic() < end, "the trainer has published nothing"
        time.sleep(0.5)
