"""What the auditor says of a job of `trimtab run` that has ended, from its state folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

from trimtab.dataflow.audit.report import AuditReport, audit
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.pod import read_job


def audited(state: Path, file: Path) -> AuditReport:
    job = read_job(file)

    async def look() -> AuditReport:
        with EmbeddedNats(state / "nats") as server:
            async with await Bus.connect(server.settings, name="auditor") as bus:
                return await audit(bus, JobTopology("default", job.metadata.name), data=job.spec.data)

    return asyncio.run(look())
