"""What is left of a job after a storm: all that its streams hold, and all that its processes noted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.support.dataflow.storm.copies import Copies
from tests.support.dataflow.storm.site import BATCH, GROUP, Note, Site
from tests.support.dataflow.storm.storm import Storm
from trimtab.dataflow.audit.report import AuditReport, judged
from trimtab.dataflow.audit.streams import Streams, read_streams
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.topology import TASK_CONSUMER

_DRAIN_S = 30.0
_LOOK_S = 0.5
_DEADLINE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All that can be known afterwards."""

    streams: Streams
    report: AuditReport
    notes: list[Note]
    redeliveries: int


async def begin(site: Site) -> None:
    async with await Bus.connect(site.nats, name="auditor") as bus:
        await Copies(site.topology).begin(bus)


async def drain(site: Site, storm: Storm) -> None:
    """With no workers left, the trainers train all that makes a batch. What has been forgotten would stay for ever, so
    there is an end to this.
    """
    async with await Bus.connect(site.nats, name="auditor") as bus:
        end = asyncio.get_running_loop().time() + _DRAIN_S
        while asyncio.get_running_loop().time() < end:
            report = (await read(site, bus))[1]
            if not too_much_waits(report) and not report.staged:
                return
            storm.tend()
            await asyncio.sleep(_LOOK_S)


def too_much_waits(report: AuditReport) -> bool:
    return any(groups >= BATCH // GROUP for groups in report.waiting.values())


async def read(site: Site, bus: Bus) -> tuple[Streams, AuditReport]:
    copies = Copies(site.topology)
    await copies.catch_up(bus)
    streams = await read_streams(
        bus, site.topology, ledger=copies.ledger, trajectories=copies.trajectories, columns=copies.columns
    )
    return streams, judged(streams, data=site.job.spec.data, stages=site.job.spec.stages)


async def examine(site: Site) -> Outcome:
    async with await Bus.connect(site.nats, name="auditor") as bus:
        streams, report = await read(site, bus)
        consumer = f"CONSUMER.INFO.{site.topology.tasks.name}.{TASK_CONSUMER}"
        delivered = (await api_call(bus, consumer, deadline_s=_DEADLINE_S))["delivered"]
    # Every task is delivered once in order; all beyond that are deliveries again.
    redeliveries = delivered["consumer_seq"] - delivered["stream_seq"]
    return Outcome(streams=streams, report=report, notes=site.notes(), redeliveries=redeliveries)
