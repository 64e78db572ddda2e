"""A version that is rolled back to meets records of a newer one: by each it either stops, by its name and with nothing
written, or goes on because the writer says that it may.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from tests.support.dataflow.lineage import LineageTrainer
from tests.support.dataflow.simulation import JOURNAL_KEY, Simulation, running, simulation
from trimtab.dataflow.audit.report import audit
from trimtab.dataflow.ledger import newer_records
from trimtab.dataflow.ledger.authorship import HEADER
from trimtab.dataflow.ledger.records import RECORDS, SettingsTaken
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.message import Message


class OfTheFuture(Message, frozen=True, kw_only=True):
    KIND: ClassVar[int] = 250

    policy: str


class NextMajor(OfTheFuture, frozen=True, kw_only=True):
    KIND: ClassVar[int] = 35
    MAJOR: ClassVar[int] = 2


async def written_by_the_future(sim: Simulation, record: Message) -> int:
    """The number of the record."""
    last = await last_record(sim)
    payload, stream = encode(record), sim.topology.ledger.name
    code = JOURNAL_KEY.code(payload, stream=stream, sequence=last + 1)
    said = {HEADER: code, "Trimtab-Ledger-Format": "2", **newer_records.passable_headers(record)}
    await publish(sim.bus, sim.topology.ledger_subject, payload, message_id="future", headers=said, deadline_s=60.0)
    return last + 1


async def last_record(sim: Simulation) -> int:
    state = (await api_call(sim.bus, f"STREAM.INFO.{sim.topology.ledger.name}", deadline_s=60.0))["state"]
    return int(state["last_seq"])


@pytest.mark.parametrize(
    ("record", "named"),
    [(OfTheFuture(policy="solver"), "message kind 250, expected"), (NextMajor(policy="solver"), "of major version 2")],
)
async def test_an_unknown_record_stops_the_dataflow_by_its_name_and_nothing_is_written(
    nats_settings: NatsSettings, tmp_path: Path, record: Message, named: str
) -> None:
    async with simulation(nats_settings, tmp_path) as sim:
        async with sim.service(), running(sim.work()):
            await LineageTrainer(sim).train(3)
        number = await written_by_the_future(sim, record)
        for _ in range(2):
            async with sim.service() as service:
                with pytest.raises(newer_records.UnknownRecord, match=f"record {number} .* unknown .*{named}"):
                    await asyncio.wait_for(service, 60.0)
        assert await last_record(sim) == number
        violations = (await audit(sim.bus, sim.topology, data=sim.job.spec.data)).violations
        assert any(named in one for one in violations), violations


async def test_a_record_that_may_be_passed_over_is(
    nats_settings: NatsSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer_records, "_PASSABLE", (OfTheFuture,))
    async with simulation(nats_settings, tmp_path) as sim, running(sim.work()):
        trainer = LineageTrainer(sim)
        async with sim.service():
            await trainer.train(3)
        number = await written_by_the_future(sim, OfTheFuture(policy="solver"))
        with capture_logs() as logs:
            async with sim.service():
                await trainer.restart()
                await trainer.train(3)
        trainer.check()
        told = [line for line in logs if line["event"] == "newer_record_passed_over"]
        assert [(line["sequence"], line["kind"]) for line in told] == [(number, OfTheFuture.KIND)]
        assert (await audit(sim.bus, sim.topology, data=sim.job.spec.data)).violations == []


async def test_a_version_that_does_not_know_settings_goes_on_without_them(
    nats_settings: NatsSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger of today, read by a version before the record of settings was added."""
    known = tuple(kind for kind in RECORDS if kind is not SettingsTaken)
    async with simulation(nats_settings, tmp_path) as sim, running(sim.work()):
        trainer = LineageTrainer(sim)
        async with sim.service():
            await trainer.train(3)
        before = await last_record(sim)
        monkeypatch.setattr(newer_records, "RECORDS", known)
        async with sim.service():
            await trainer.restart()
            await trainer.train(3)
        monkeypatch.undo()
        assert await last_record(sim) > before
        async with sim.service():
            await trainer.restart()
            await trainer.train(3)
        trainer.check()
        assert (await audit(sim.bus, sim.topology, data=sim.job.spec.data)).violations == []
