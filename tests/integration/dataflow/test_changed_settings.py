"""Batch size and staleness are changed in a job that runs: the ledger says so, and no step is of two minds."""

from __future__ import annotations

from pathlib import Path

from tests.support.dataflow.simulation import running, simulation
from trimtab.dataflow.audit.report import audit
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger.records import SettingsTaken, StepGranted
from trimtab.fabric.settings import NatsSettings


async def test_steps_from_then_on_are_of_the_new_size(nats_settings: NatsSettings, tmp_path: Path) -> None:
    async with simulation(nats_settings, tmp_path) as sim:
        data = sim.job.spec.data
        changes = (
            {"batch_size": 2 * data.batch_size, "max_staleness": data.max_staleness + 1},
            {"batch_size": data.group_size, "max_staleness": 1},
        )
        async with sim.service(), running(sim.work()):
            await sim.train(steps=range(3), attempt=0, seen={})
        for number, change in enumerate(changes, start=1):
            spec = sim.job.spec.model_copy(update={"data": data.model_copy(update=change)})
            sim.job = sim.job.model_copy(update={"spec": spec})
            async with sim.service(), running(sim.work()):
                await sim.train(steps=range(3 * number, 3 * (number + 1)), attempt=number, seen={})
        streams = await read_streams(sim.bus, sim.topology)
        sizes: dict[int, int] = {}
        for record in streams.records:
            if isinstance(record, StepGranted):
                sizes[record.step] = sizes.get(record.step, 0) + len(record.groups)
        groups = data.batch_size // data.group_size
        assert [sizes[step] for step in range(9)] == [groups] * 3 + [2 * groups] * 3 + [1] * 3
        taken = [record for record in streams.records if isinstance(record, SettingsTaken)]
        assert [record.max_staleness for record in taken] == [data.max_staleness, data.max_staleness + 1, 1]
        assert taken[1].batch_sizes == {"solver": 2 * data.batch_size}
        assert (await audit(sim.bus, sim.topology, data=sim.job.spec.data)).violations == []
