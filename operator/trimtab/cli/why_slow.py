"""`trimtab why-slow JOB`: where the time of a sample and of a step goes, and what that comes down to."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.cli.chronicle.figures import percent
from trimtab.cli.chronicle.file import read
from trimtab.cli.chronicle.story import told
from trimtab.cli.job_bucket import json_option, of_a_job, readable_errors, with_bus
from trimtab.cli.printable import printable
from trimtab.cli.samples.choice import NothingChosen, StoredRow, Wanted, chosen
from trimtab.cli.samples.reading import JobStore, complain, stored_rows, trajectories
from trimtab.cli.slowness.export import otlp_option, sent
from trimtab.cli.slowness.samples import SampleTime, SampleTimes, sample_times
from trimtab.cli.slowness.steps import StepTimes, WeightTimes, step_times, step_times_of, weight_times
from trimtab.cli.slowness.verdict import verdict
from trimtab.cli.top.following import JobNow
from trimtab.dataflow.audit.granted_steps import GrantedSteps, grants
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology

_ROWS = 256
_WIDTH = 110
_BAR = 30


class Slowness(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    samples: tuple[SampleTimes, ...]
    steps: tuple[StepTimes, ...]
    """Empty of a job that does not run, but for one of `trimtab run`, whose history has them."""
    weights: tuple[WeightTimes, ...]
    verdicts: tuple[str, ...]


@click.command("why-slow")
@of_a_job
@click.option("--rows", type=click.IntRange(min=1), default=_ROWS, show_default=True, help="Newest rows looked at.")
@otlp_option
@json_option
def why_slow(job: str, namespace: str, state_folder: Path | None, rows: int, otlp: str | None, as_json: bool) -> None:
    """Show where the time of JOB's samples and steps goes.

    Reads TRIMTAB_NATS__… like pods do; for a job of `trimtab run`, give its --state-folder.
    """
    topology = JobTopology(namespace, job)

    async def work(bus: Bus) -> tuple[Slowness, list[SampleTime]]:
        samples = await _newest(bus, topology, JobStore(state_folder), limit=rows)
        now = JobNow(bus, topology, clock=time.time)
        async with now.following():
            members = now.members
        of_samples, of_steps = sample_times(samples), step_times(members)
        if not of_steps and state_folder is not None:
            of_steps = step_times_of(told(read(state_folder)))
        found = Slowness(
            job=job,
            samples=of_samples,
            steps=of_steps,
            weights=weight_times(members),
            verdicts=tuple(verdict(step, of_samples) for step in of_steps),
        )
        return found, samples

    with readable_errors():
        found, samples = with_bus(work, topology, state_folder=state_folder)
    if otlp is not None:
        click.echo(f"{sent(samples, job=job, namespace=namespace, to=otlp)} episodes sent to {otlp}", err=True)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    for part in tables(found):
        console.print(part)


async def _newest(bus: Bus, topology: JobTopology, store: JobStore, *, limit: int) -> list[SampleTime]:
    """Those of training that the stream still has."""
    try:
        rows = chosen(await stored_rows(bus, topology, complain=complain), Wanted(limit=limit))
    except NothingChosen:
        return []
    granted = await grants(bus, topology)
    found = []
    async with store:
        async for row, trajectory in trajectories(bus, topology, rows, store, None, complain=complain):
            found.append(SampleTime(row=trajectory, waits_s=_waits(row, granted)))
    return found


def _waits(row: StoredRow, granted: GrantedSteps) -> float | None:
    at = granted.granted_at.get((row.header.policy, row.header.group_id))
    return None if at is None or row.step is None else max(0.0, at - row.header.finished_at)


def tables(found: Slowness) -> list[RenderableType]:
    shown: list[RenderableType] = [part for one in found.samples for part in _samples(one)]
    shown += [part for one in found.steps for part in _steps(one)]
    shown += [
        Text(
            f"weights of pool {one.pool}: {one.refresh_seconds:.2f} s from news to use,"
            f" {one.pause_seconds:.2f} s of it paused\n"
        )
        for one in found.weights
    ]
    if not found.samples:
        shown.append(Text(f"{found.job}: no row in the stream says where its time went"))
    if not found.steps:
        shown.append(Text(f"{found.job}: no trainer says where its steps' time goes: it does not run, or just began"))
    return [*shown, *(Text(one, style="bold") for one in found.verdicts)]


def _samples(times: SampleTimes) -> tuple[Text, Table, Text]:
    title = (
        f"a sample of {times.policy}: {times.seconds:.2f} s from its task to its reward, mean of {times.samples};"
        f" the slowest tenth {times.slowest_seconds:.2f} s"
    )
    table = _table("", "s", "share", "", "slowest tenth")
    total = sum(share.seconds for share in times.shares) or 1.0
    for share in times.shares:
        part = share.seconds / total
        table.add_row(
            printable(share.name), f"{share.seconds:.3f}", percent(part), _bar(part), f"{share.slowest_seconds:.3f}"
        )
    return Text(title, style="italic"), table, Text()


def _steps(times: StepTimes) -> tuple[Text, Table, Text]:
    upload = "" if times.upload_seconds is None else f"; beside it, {times.upload_seconds:.2f} s to publish a version"
    table = _table("", "s", "share", "")
    for name, seconds in times.parts.items():
        part = seconds / times.seconds if times.seconds else 0.0
        table.add_row(name, f"{seconds:.3f}", percent(part), _bar(part))
    title = f"a step of {times.policy}: {times.seconds:.2f} s, mean of the last ten{upload}"
    return Text(title, style="italic"), table, Text()


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    return table


def _bar(share: float) -> str:
    return "█" * round(_BAR * min(1.0, share))
