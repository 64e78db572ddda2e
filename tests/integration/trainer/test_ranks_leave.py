"""Two ranks of the real trainer under torchrun leave together, and what they trained is kept."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.polling import eventually
from tests.support.trainer.batch_server import NOT_READY, Answer, BatchServer
from tests.support.trainer.one_trainer import SIGNER, SUPERSEDED, announced, saved_step
from tests.support.trainer.rank_job import write_rank_job
from tests.support.trainer.samples import policy
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, Settings, environment_for, write_secrets
from trimtab.fabric.wire.lease import BatchLease, BatchRequest

pytestmark = pytest.mark.slow


class Ranks:
    """`torchrun` with two ranks of the real trainer."""

    def __init__(
        self, folder: Path, model: Path, nats: NatsSettings, objects: ObjectStoreSettings, topology: JobTopology
    ) -> None:
        (folder / "model").symlink_to(model)
        trained = policy(checkpoint={"everySteps": 50})
        write_rank_job(folder / "job.yaml", topology, trained, group_size=2, max_staleness=8)
        settings = Settings.model_validate(
            {
                "pod": {
                    "namespace": topology.namespace, "job": topology.job, "role": "trainer", "name": "trainer-0",
                    "policy": "solver",
                },
                "nats": nats,
                "object_store": objects,
                "weights": {"signing_seed": SIGNER.reveal_seed()},
                "probes": {"port": 0},
            }
        )  # fmt: skip
        write_secrets(settings, folder / "secrets")
        environment = environment_for(settings, secrets_dir=folder / "secrets")
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                    "-m", "trimtab.trainer",
                ],
                env=os.environ | environment | {
                    "TRIMTAB_JOB_FILE": str(folder / "job.yaml"),
                    "TRIMTAB_SCRATCH": str(folder / "scratch"),
                },
                stdout=log,
                stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()


@pytest.mark.parametrize("ending", ["refusal", "sigterm", "two ledgers"])
async def test_ranks_leave_together(
    bus: Bus,
    store: ObjectStore,
    topology: JobTopology,
    model: Path,
    tmp_path: Path,
    nats_settings: NatsSettings,
    store_settings: ObjectStoreSettings,
    ending: str,
) -> None:
    """Rank 1 is refused while rank 0 has rows, or has rows that were dealt by another ledger, or both are told to stop:
    nobody hangs, what was trained is kept."""
    batch_server = BatchServer(bus, topology, steps=9)

    def answer(request: BatchRequest) -> Answer | None:
        if request.step < 3:
            return None
        if ending == "refusal":
            return SUPERSEDED if request.rank == 1 else None
        if ending == "two ledgers":
            lease = batch_server.lease(request)
            assert isinstance(lease, BatchLease)
            return msgspec.structs.replace(lease, dealt=request.rank)
        return NOT_READY

    def asked() -> set[int]:
        """Ranks that wait for step 3; one that is refused does not ask again when step 2 is done."""
        waiting = [request for request in batch_server.requests if request.step == 3]
        return {request.rank for request in waiting if request.trained == 3 or ending != "sigterm"}

    batch_server.instead = answer
    async with await batch_server.open():
        ranks = Ranks(tmp_path, model, nats_settings, store_settings, topology)
        try:
            await eventually(
                lambda: asked() == {0, 1} or ranks.process.poll() is not None,
                timeout_s=90.0,
            )
            if ending == "sigterm":
                ranks.process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(ranks.process.wait, 400.0)
        finally:
            ranks.process.kill()
            ranks.process.wait(120.0)
    assert code != 0, ranks.log
    assert await saved_step(store, job=f"{topology.namespace}/{topology.job}") == 3, ranks.log
    assert (await announced(bus, topology)).version == 3
    if ending == "refusal":
        assert "a newer attempt asks" in ranks.log
    if ending == "two ledgers":
        assert "ranks were dealt different groups for step 3" in ranks.log
