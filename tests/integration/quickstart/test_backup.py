"""A job whose everything is lost goes on from its backup, and no sample is in the weights twice."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.support.audited_job import audited
from tests.support.dataflow.lineage import LineageTrainer
from tests.support.dataflow.simulation import SIGNER, Simulation, running, simulation
from tests.support.polling import eventually, patiently
from tests.support.quickstart_job import logged_steps, make_quickstart, run_to_its_end
from tests.support.trainer.committed import claimed, write
from trimtab.cli.main import main
from trimtab.dataflow.audit.report import AuditReport, audit
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.signing import Verifier
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.seal import CheckpointSeal

LEDGER_KEY = "the dataflow of every simulation"
CLAIM = f"claims/solver/{'0' * 64}"


async def begun(folder: Path, state: Path) -> LineageTrainer:
    """A state folder as `trimtab run` leaves it, after six steps with a checkpoint."""
    with EmbeddedNats(state / "nats") as nats:
        async with simulation(nats.settings, folder) as sim:
            trainer = LineageTrainer(sim)
            async with running(sim.work()), sim.service(), patiently(60.0):
                await trainer.train(6)
    name = f"default/{sim.job.metadata.name}"
    with EmbeddedSeaweed(state / "seaweedfs") as store:
        place = store.settings.model_copy(update={"prefix": name})
        async with ObjectStore(place) as objects:
            seal = CheckpointSeal(job=name, policy="solver", signer=SIGNER, verifier=Verifier([SIGNER.public_text]))
            checkpoints = await claimed(ObjectStorage(objects, "checkpoints/solver"), 1, seal=seal)
            await write(checkpoints, 6)
            await objects.put(CLAIM, b"a row too large for a message")
    (state / "signing-seed").write_text(SIGNER.reveal_seed())
    (state / "ledger-key").write_text(LEDGER_KEY)
    manifest = sim.job.model_dump(mode="json", by_alias=True, exclude_none=True)
    (state / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    return trainer


async def claimed_row(state: Path, name: str) -> bytes:
    with EmbeddedSeaweed(state / "seaweedfs") as store:
        async with ObjectStore(store.settings.model_copy(update={"prefix": f"default/{name}"})) as objects:
            return (await objects.get(CLAIM, max_bytes=100)).body


async def continued(trainer: LineageTrainer, state: Path) -> AuditReport:
    """Its checkpoint is that of step 6, whatever it did since."""
    before = trainer.sim
    with EmbeddedNats(state / "nats") as nats:
        async with await Bus.connect(nats.settings, name="restored") as bus:
            sim = Simulation(settings=nats.settings, folder=before.folder, job=before.job, bus=bus)
            trainer.sim = sim
            async with running(sim.work()), sim.service(), patiently(60.0):
                await trainer.restart()
                assert len(trainer.weights) == 6
                await trainer.train(4)
            return await audit(bus, sim.topology, data=sim.job.spec.data)


def trimtab(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_a_lost_job_goes_on_from_its_backup(tmp_path: Path) -> None:
    state, backup, passphrase = tmp_path / "state", tmp_path / "backup", tmp_path / "passphrase"
    state.mkdir()
    passphrase.write_text("correct horse battery staple\n")
    trainer = asyncio.run(begun(tmp_path, state))
    name = trainer.sim.job.metadata.name
    place = ("--state-folder", state, "--passphrase-file", passphrase)
    said = trimtab("backup", name, backup, *place)
    assert said.exit_code == 0, said.output
    assert "solver at step 6" in said.output
    for file in backup.rglob("*"):
        if file.is_file():
            assert not any(key.encode() in file.read_bytes() for key in (SIGNER.reveal_seed(), LEDGER_KEY)), file
    again = trimtab("backup", name, backup, *place)
    assert again.exit_code == 1
    assert "is there already" in again.output

    held = trimtab("restore", backup, *place)
    assert held.exit_code == 1
    assert "is not empty" in held.output
    shutil.rmtree(state)
    ledger = backup / "streams" / "00"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged = trimtab("restore", backup, *place)
    assert damaged.exit_code == 1
    assert f"{ledger} has another checksum than was written" in damaged.output
    assert not state.exists()
    ledger.write_bytes(whole)

    restored = trimtab("restore", backup, *place)
    assert restored.exit_code == 0, restored.output
    assert asyncio.run(claimed_row(state, name)) == b"a row too large for a message"
    report = asyncio.run(continued(trainer, state))
    trainer.check()
    assert trainer.anchored == 0
    assert report.violations == []
    assert report.steps == {"solver": 10}


@pytest.mark.slow
def test_a_trained_job_goes_on_from_its_backup(tmp_path: Path) -> None:
    """With real trainers and engines: the state folder of a job that has succeeded is lost, and it is to do more."""
    file = make_quickstart(tmp_path, name="lost", max_steps=4)
    run_to_its_end(file)
    assert [line["step"] for line in logged_steps(file)] == [0, 1, 2, 3]
    state, backup = tmp_path / ".trimtab" / "lost", tmp_path / "backup"
    said = trimtab("backup", "lost", backup, "--state-folder", state, "--no-keys")
    assert said.exit_code == 0, said.output
    kept = {name: (state / name).read_text() for name in ("signing-seed", "ledger-key")}
    shutil.rmtree(state)
    refused = trimtab("restore", backup, "--state-folder", state)
    assert refused.exit_code == 1
    assert "the backup was made without keys" in refused.output
    state.mkdir()
    for name, key in kept.items():
        (state / name).write_text(key)
    restored = trimtab("restore", backup, "--state-folder", state)
    assert restored.exit_code == 0, restored.output
    verifying = [sys.executable, "-m", "trimtab.cli.main", "weights", "verify", "--state-folder", str(state)]

    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["maxSteps"] = 8
    file.write_text(yaml.safe_dump(manifest))
    run_to_its_end(file)
    steps = [line["step"] for line in logged_steps(file)]
    assert steps[0] <= 4
    assert steps[-1] == 7
    sound = subprocess.run(verifying, capture_output=True, text=True, timeout=600)
    assert sound.returncode == 0, sound.stdout + sound.stderr

    report = audited(state, file)
    assert report.violations == []
    assert report.steps == {"solver": 8}
    assert report.trained == {"solver": 8 * 256}


@pytest.mark.slow
def test_a_running_job_is_backed_up(tmp_path: Path) -> None:
    """It goes on, and so does what is restored: each from its own newest checkpoint."""
    file = make_quickstart(tmp_path, name="busy", max_steps=12)
    state, restored, backup = tmp_path / ".trimtab" / "busy", tmp_path / "restored", tmp_path / "backup"
    with (tmp_path / "out.txt").open("wb") as output:
        process = subprocess.Popen(trimtab_run(file), stdout=output, stderr=output, start_new_session=True)
        try:

            def has_checkpoint() -> bool:
                assert process.poll() is None, (tmp_path / "out.txt").read_text()
                logs = (state / "logs").glob("*.trainer.log")
                return any('"event": "checkpoint"' in log.read_text() for log in logs)

            asyncio.run(eventually(has_checkpoint, timeout_s=300))
            said = trimtab("backup", "busy", backup, "--state-folder", state, "--plain-keys")
            assert said.exit_code == 0, said.output
            assert process.wait(600) == 0, (tmp_path / "out.txt").read_text()
        finally:
            process.kill()
            process.wait(60)
    assert audited(state, file).violations == []
    made = trimtab("restore", backup, "--state-folder", restored)
    assert made.exit_code == 0, made.output
    again = subprocess.run(
        [*trimtab_run(file), "--state-folder", str(restored)], capture_output=True, text=True, timeout=600
    )
    assert again.returncode == 0, again.stderr
    report = audited(restored, file)
    assert report.violations == []
    assert report.steps == {"solver": 12}
    (log,) = (restored / "logs").glob("*.trainer.log")
    assert '"event": "resumed"' in log.read_text()


def trimtab_run(file: Path) -> list[str]:
    return [sys.executable, "-m", "trimtab.cli.main", "run", str(file)]
