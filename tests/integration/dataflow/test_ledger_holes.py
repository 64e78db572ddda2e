"""A ledger with a hole in its middle, as a damaged file leaves it: what was decided after it counts for nothing, the
job goes on, and no sample is in the weights twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dataflow.lineage import LineageTrainer
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.polling import patiently
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger.records import LedgerAnchoredAnew
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.streams import delete_message
from trimtab.fabric.settings import NatsSettings

_D = 60.0


async def _last(sim: Simulation) -> int:
    info = await api_call(sim.bus, f"STREAM.INFO.{sim.topology.ledger.name}", deadline_s=_D)
    return int(info["state"]["last_seq"])


async def _anchors(sim: Simulation) -> list[LedgerAnchoredAnew]:
    records = (await read_streams(sim.bus, sim.topology)).records
    return [record for record in records if isinstance(record, LedgerAnchoredAnew)]


@pytest.mark.parametrize("lost", [1, 4, 10])
async def test_what_was_decided_after_a_hole_counts_for_nothing_and_the_job_goes_on(
    nats_settings: NatsSettings, tmp_path: Path, lost: int
) -> None:
    async with simulation(nats_settings, tmp_path, prompts=500) as sim, running(sim.work()):
        trainer = LineageTrainer(sim)
        async with sim.service(), patiently(_D):
            await trainer.train(8)
        last = await _last(sim)
        for sequence in range(last // 2, last // 2 + lost):
            await delete_message(sim.bus, sim.topology.ledger.name, sequence, deadline_s=_D)
        async with sim.service(), patiently(_D):
            await trainer.restart()
            await trainer.train(4)
        trainer.check()
        told = await _anchors(sim)
        assert told[0].lost_rows
        # A second process finds the same hole, and the record by which the first one went on.
        async with sim.service(), patiently(_D):
            await trainer.restart()
            await trainer.train(4)
        trainer.check()
        assert await _anchors(sim) == told


async def test_a_ledger_that_went_on_behind_a_lost_end_has_no_hole(nats_settings: NatsSettings, tmp_path: Path) -> None:
    async with simulation(nats_settings, tmp_path, prompts=500) as sim, running(sim.work()):
        trainer = LineageTrainer(sim)
        async with sim.service(), patiently(_D):
            await trainer.train(4)
        await delete_message(sim.bus, sim.topology.ledger.name, await _last(sim), deadline_s=_D)
        for _ in range(3):
            async with sim.service(), patiently(_D):
                await trainer.restart()
                await trainer.train(2)
            trainer.check()
        assert not any(record.lost_rows for record in await _anchors(sim))
