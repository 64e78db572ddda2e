"""The quickstart as a person runs it: it learns asynchronously, each sample once; Ctrl-C leaves nothing; it resumes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import psutil
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from examples.streams import LAST_STEPS, Streams, figures, read_streams
from tests.support.polling import eventually
from tests.support.processes import runs
from tests.support.quickstart_job import make_quickstart, run_to_its_end, trainer_log
from tests.support.sizes import Sizes
from trimtab.cli.chronicle.file import read
from trimtab.cli.chronicle.story import told
from trimtab.dataflow.audit.report import AuditReport, audit
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.pod import read_job


def _trimtab(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trimtab.cli.main", *arguments]


def _descendants_of(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, sizes: Sizes) -> tuple[Path, Streams, AuditReport]:
    """One whole run; with --all stopped by Ctrl-C in its middle and resumed."""
    folder = tmp_path_factory.mktemp("quickstart")
    file = make_quickstart(folder, name="learns", max_steps=sizes.quickstart_steps, whole=True)
    manifest = yaml.safe_load(file.read_text())
    # So slow that the trainer waits for one replica on a slow machine too.
    manifest["spec"]["workflow"]["args"]["tool_seconds"] = 1.0
    manifest["spec"]["autoscaling"]["maxReplicas"] = sizes.quickstart_replicas
    file.write_text(yaml.safe_dump(manifest))
    state = folder / ".trimtab" / "learns"
    if sizes.interrupted_jobs:
        _interrupt(file, state)
    completed = subprocess.run(_trimtab("run", str(file)), capture_output=True, text=True, timeout=600)
    assert completed.returncode == 0, completed.stderr
    assert f"report: {state / 'report.html'}" in completed.stderr
    topology = JobTopology("default", "learns")
    return file, asyncio.run(read_streams(state, topology)), asyncio.run(_audit(file, state, topology))


def _interrupt(file: Path, state: Path) -> None:
    folder = file.parent
    with (folder / "first.txt").open("wb") as output:
        first = subprocess.Popen(_trimtab("run", str(file)), stdout=output, stderr=output, start_new_session=True)
        _wait_for_step(folder / "first.txt", first, 10)
        _look_at_weights(state)
        family = _descendants_of(first.pid)
        first.send_signal(signal.SIGINT)
        assert first.wait(600) == 130, (folder / "first.txt").read_text()
    assert "run the same command to resume" in (folder / "first.txt").read_text()
    asyncio.run(eventually(lambda: not any(map(runs, family)), timeout_s=30))

    assert (state / "report.html").exists(), "a run that is stopped leaves its report too"


def _look_at_weights(state: Path) -> None:
    """As the quickstart page tells people to, while the job runs."""
    command = f". {state}/environment && exec {sys.executable} -m trimtab.cli.main weights verify --deep"
    verified = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=600)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    text = (state / "environment").read_text()
    assert not any(secret.read_text().strip() in text for secret in (state / "secrets").iterdir())


def _wait_for_step(output: Path, process: subprocess.Popen[bytes], step: int) -> None:
    async def wait() -> None:
        def there() -> bool:
            assert process.poll() is None, output.read_text()
            lines = [line for line in output.read_text().splitlines() if " step " in line]
            return bool(lines) and int(lines[-1].split(" step ")[1].split()[0]) >= step

        await eventually(there, timeout_s=120)

    asyncio.run(wait())


async def _audit(file: Path, state: Path, topology: JobTopology) -> AuditReport:
    with EmbeddedNats(state / "nats") as server:
        bus = await Bus.connect(server.settings, name="auditor")
        report = await audit(bus, topology, data=read_job(file).spec.data)
        await bus.close()
    return report


def test_the_reward_rises(finished: tuple[Path, Streams, AuditReport], sizes: Sizes) -> None:
    measured = figures(finished[1])
    assert measured["steps"] == sizes.quickstart_steps
    assert measured["first_reward"] < 0.25
    assert measured["last_reward"] > sizes.quickstart_reward


def test_versions_advance_in_the_trajectories(finished: tuple[Path, Streams, AuditReport], sizes: Sizes) -> None:
    versions = {header.newest_version for header in finished[1].headers}
    assert len(versions) > sizes.quickstart_steps / 2
    assert max(version for version in versions if version is not None) >= sizes.quickstart_steps - 4


def test_each_sample_is_trained_exactly_once(finished: tuple[Path, Streams, AuditReport], sizes: Sizes) -> None:
    report = finished[2]
    assert report.violations == []
    assert report.trained == {"solver": sizes.quickstart_steps * 256}


def test_rollout_and_training_overlap(finished: tuple[Path, Streams, AuditReport]) -> None:
    """Most of the time in which the trainer computes, samples are being made: nobody waits for the other's turn."""
    assert figures(finished[1])["overlap_of_training"] > 0.5


def test_its_reports_and_results_can_be_read_when_it_is_over(finished: tuple[Path, Streams, AuditReport]) -> None:
    place = ["learns", "--state-folder", str(finished[0].parent / ".trimtab" / "learns"), "--json"]
    for command, what in (("balance", "wait_fraction"), ("evaluation", "score")):
        said = subprocess.run(_trimtab(command, *place), capture_output=True, text=True, timeout=600)
        assert said.returncode == 0, said.stderr
        assert all(what in entry for entry in json.loads(said.stdout))


@pytest.mark.slow
def test_what_it_said_can_be_read_when_it_is_over(finished: tuple[Path, Streams, AuditReport], sizes: Sizes) -> None:
    """The rows of the last step, by the tokenizer of the model that the job began with."""
    place = ["learns", "--state-folder", str(finished[0].parent / ".trimtab" / "learns")]
    asked = _trimtab("samples", *place, "--step", str(sizes.quickstart_steps), "--best", "--limit", "1")
    said = subprocess.run(asked, capture_output=True, text=True, timeout=600)
    assert said.returncode == 0, said.stderr
    assert f"reward 1 · step {sizes.quickstart_steps} · version" in said.stdout
    assert "── prompt · 6 tokens\n" in said.stdout
    assert "── model · turn 1 · version" in said.stdout


@pytest.mark.slow
def test_its_model_is_taken_out_when_it_is_over(finished: tuple[Path, Streams, AuditReport], tmp_path: Path) -> None:
    """No server runs then. What is pulled is what transformers loads, and knows more than the model it began with."""
    folder = finished[0].parent
    place = ("--state-folder", str(folder / ".trimtab" / "learns"))
    pulling = _trimtab("weights", "pull", str(tmp_path), *place)
    pulled = subprocess.run(pulling, capture_output=True, text=True, timeout=600)
    assert pulled.returncode == 0, pulled.stderr
    first, taught = (
        AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32) for where in (folder / "model", tmp_path)
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    rows = [json.loads(line) for line in (folder / "held_out.jsonl").read_text().splitlines()]

    def right(model: PreTrainedModel) -> float:
        """How likely it finds the answer, on average."""
        found = []
        for row in rows:
            tokens = torch.tensor([tokenizer.encode(row["prompt"], add_special_tokens=False)])
            answer = tokenizer.encode(row["answer"], add_special_tokens=False)[0]
            with torch.no_grad():
                found.append(model(tokens).logits[0, -1].softmax(-1)[answer].item())
        return fmean(found)

    assert right(taught) > right(first) + 0.02


def test_it_leaves_a_report_of_the_whole_story(finished: tuple[Path, Streams, AuditReport], sizes: Sizes) -> None:
    """Before the interruption and after it, with the figures that the streams have too."""
    state = finished[0].parent / ".trimtab" / "learns"
    story = told(read(state))
    solver = story.policies["solver"]
    assert [step.step for step in solver.steps] == list(range(sizes.quickstart_steps))
    measured = figures(finished[1])
    assert fmean(step.reward for step in solver.steps[-LAST_STEPS:]) == pytest.approx(measured["last_reward"], abs=1e-3)
    assert solver.steps[-1].samples == measured["samples"]
    assert len(story.resumed_at) == sizes.interrupted_jobs
    assert story.ended is not None
    assert story.ended.outcome == "succeeded"

    scores = [score.score for score in solver.scores["held-out"] if score.score is not None]
    assert scores[-1] > scores[0] + sizes.quickstart_gain
    assert all(score.episodes == 100 for score in solver.scores["held-out"])

    assert any((decision.before, decision.reason) == (1, "TrainerStarving") for decision in story.decisions)
    assert max(sum(fleet.ready.values()) for fleet in story.fleet) > 1
    assert solver.full_size is not None
    assert 0 < fmean(delta.size for delta in solver.deltas) < 0.9 * solver.full_size

    page = (state / "report.html").read_text()
    for key in ("reward", "evaluation", "waiting", "fleet", "staleness", "weights", "throughput", "decisions"):
        assert f'id="{key}"' in page, key
    assert f'data-name="reward" data-points="{sizes.quickstart_steps}"' in page


def test_no_question_is_both_trained_on_and_held_out(finished: tuple[Path, Streams, AuditReport]) -> None:
    trained, held_out = (
        {json.loads(line)["prompt"] for line in (finished[0].parent / name).read_text().splitlines()}
        for name in ("prompts.jsonl", "held_out.jsonl")
    )
    assert (len(trained), len(held_out)) == (900, 100)
    assert not trained & held_out


def test_a_finished_job_is_not_run_again(finished: tuple[Path, Streams, AuditReport]) -> None:
    again = subprocess.run(_trimtab("run", str(finished[0])), capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stderr
    assert "has succeeded already" in again.stderr


@pytest.mark.slow
def test_a_finished_job_goes_on_when_it_is_to_do_more_steps(tmp_path: Path) -> None:
    """From where it ended: the first steps are not done again but for those after the newest checkpoint, and those on
    the same samples."""
    file = make_quickstart(tmp_path, name="more", max_steps=6)
    run_to_its_end(file)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["maxSteps"] = 12
    file.write_text(yaml.safe_dump(manifest))
    run_to_its_end(file)
    state = tmp_path / ".trimtab" / "more"
    report = asyncio.run(_audit(file, state, JobTopology("default", "more")))
    assert report.violations == []
    assert report.steps == {"solver": 12}
    assert report.trained == {"solver": 12 * 256}
    resumed = [line["step"] for line in trainer_log(file) if line["event"] == "resumed"]
    assert len(resumed) == 1
    assert 0 < resumed[0] <= 6
    assert [step.step for step in told(read(state)).policies["solver"].steps] == list(range(12))


def test_what_is_missing_beside_the_manifest_is_named(tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="missing", max_steps=1)
    (tmp_path / "prompts.jsonl").unlink()
    completed = subprocess.run(_trimtab("run", str(file)), capture_output=True, text=True, timeout=600)
    assert completed.returncode == 1
    assert "spec.data.prompts[train].jsonl.uri" in completed.stderr


def test_what_this_version_does_not_do_is_refused_by_name(tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="too-much", max_steps=1, shards=2)
    completed = subprocess.run(_trimtab("run", str(file)), capture_output=True, text=True, timeout=600)
    assert completed.returncode == 1
    assert "spec.data.shards" in completed.stderr


@pytest.mark.slow
async def test_killing_trimtab_run_leaves_no_process(tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="killed", max_steps=1000)
    with (tmp_path / "out.txt").open("wb") as output:
        process = subprocess.Popen(_trimtab("run", str(file)), stdout=output, stderr=output, start_new_session=True)
        await eventually(lambda: len(_descendants_of(process.pid)) >= 7, timeout_s=60)
        family = _descendants_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(120)
    await eventually(lambda: not any(map(runs, family)), timeout_s=30)
