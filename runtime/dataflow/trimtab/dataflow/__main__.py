"""`python -m trimtab.dataflow`: the dataflow pod of one job."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from pathlib import Path

from trimtab.dataflow.ledger.authorship import JournalKey
from trimtab.dataflow.ledger.journal import Journal, JournalMaker
from trimtab.dataflow.service import run_dataflow
from trimtab.fabric.pod import JobMisconfigured, JobPodSettings, pod_settings, run_pod, running_pod


class DataflowPodSettings(JobPodSettings):
    """`scratch` is where prompts from object storage are kept, and Parquet files unpacked."""

    scratch: Path | None = None


async def main(settings: DataflowPodSettings, *, make_journal: JournalMaker = Journal) -> None:
    if settings.ledger.key is None:
        raise JobMisconfigured("TRIMTAB_LEDGER__KEY: missing; the dataflow believes only records that it has signed")
    journal_key = JournalKey(settings.ledger.key.get_secret_value())
    async with running_pod(settings, signals=(signal.SIGTERM, signal.SIGINT)) as pod:
        service = asyncio.create_task(
            run_dataflow(
                pod.job,
                pod.bus,
                pod.topology,
                folder=pod.folder,
                member_id=settings.pod.name,
                incarnation=uuid.uuid4().hex,
                journal_key=journal_key,
                clock=time.time,
                metrics=pod.metrics,
                object_store=settings.object_store,
                scratch=settings.scratch,
                make_journal=make_journal,
                checkpoint_keys=settings.weights.public_keys,
            )
        )
        stop = asyncio.create_task(pod.stopping.wait())
        # Whatever is under way may be cut off: the ledger knows everything that anyone was told.
        done, _ = await asyncio.wait({service, stop}, return_when=asyncio.FIRST_COMPLETED)
        if service in done:
            service.result()
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)


if __name__ == "__main__":
    run_pod(main(pod_settings(DataflowPodSettings)))
