"""Stage workers as processes that die: before they store a column, between that and the end of their task, and whenever
they are killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from functools import partial

from tests.support.dataflow.stage_worker import Faults, StageWorker
from tests.support.dataflow.storm.leaving import on_sigterm
from tests.support.dataflow.storm.site import Computed, Site
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery

_FAULTS = Faults(dies_before=0.2, dies_after=0.3, repeats=3.0, lies=2.0, fails_groups=True)


async def _dies(_: Delivery) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def compute(site: Site, name: str, life: int) -> None:
    """All stages, until SIGTERM."""
    site.write_output_to(name)
    asyncio.run(_compute(site, name, life))


async def _compute(site: Site, name: str, life: int) -> None:
    def stored(stage: str, group_id: str, run: str, sequence: int) -> None:
        site.note(name, Computed(stage, group_id, run, sequence))

    stopping = asyncio.Event()
    on_sigterm(stopping.set)
    chance = random.Random(f"{name}/{life}")
    async with await Bus.connect(site.nats, name=name) as bus:
        workers = [
            asyncio.create_task(
                StageWorker(
                    bus,
                    site.topology,
                    stage,
                    chance=chance,
                    faults=_FAULTS,
                    dies=_dies,
                    on_stored=partial(stored, stage.name),
                ).run()
            )
            for stage in site.job.spec.stages
        ]
        stop = asyncio.create_task(stopping.wait())
        done, _ = await asyncio.wait({stop, *workers}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stop}:
            task.result()
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
