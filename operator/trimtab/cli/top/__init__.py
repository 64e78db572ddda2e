"""`trimtab top JOB`: what every pod of a running job does now, again and again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.live import Live

from trimtab.cli.job_bucket import check_stream, json_option, of_a_job, readable_errors, with_bus
from trimtab.cli.top.following import JobNow
from trimtab.cli.top.table import rendered
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology

_REFRESH_S = 1.0
_WIDTH = 130


@click.command()
@of_a_job
@click.option("--once", is_flag=True, help="Print it once, as it does without a terminal.")
@json_option
def top(job: str, namespace: str, state_folder: Path | None, once: bool, as_json: bool) -> None:
    """Watch the pods of JOB: rates, tasks in flight, versions served, waiting and staleness. Ctrl-C ends it.

    Reads TRIMTAB_NATS__… like pods do; for a job of `trimtab run`, give its --state-folder.
    """
    topology = JobTopology(namespace, job)
    console = Console()
    live = console.is_terminal and not once and not as_json

    async def work(bus: Bus) -> None:
        await check_stream(bus, topology, topology.members.stream)
        now = JobNow(bus, topology, clock=time.time)
        async with now.following():
            if not live:
                picture = now.picture()
                if as_json:
                    click.echo(msgspec.json.encode(picture).decode())
                else:
                    Console(width=None if console.is_terminal else _WIDTH).print(rendered(picture))
                return
            with Live(rendered(now.picture()), console=console, refresh_per_second=4, transient=False) as screen:
                while True:
                    await asyncio.sleep(_REFRESH_S)
                    screen.update(rendered(now.picture()))

    try:
        with readable_errors():
            with_bus(work, topology, state_folder=state_folder)
    except KeyboardInterrupt:
        pass
