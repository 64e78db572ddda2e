"""`trimtab balance JOB`: does each trainer wait for rollouts or the other way round, and what would autoscaling do."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from trimtab.cli.job_bucket import bucket_entries, json_option, of_a_job, readable_errors, readable_values
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.balance import BalanceReport, Volume

_EVERY_REPORT = "*.report"
_WIDTH = 110


@click.command()
@of_a_job
@json_option
def balance(job: str, namespace: str, state_folder: Path | None, as_json: bool) -> None:
    """Show the newest balance report of every policy of JOB.

    Reads TRIMTAB_NATS__… like pods do; for a job of `trimtab run`, give its --state-folder.
    """
    with readable_errors():
        topology = JobTopology(namespace, job)
        entries = bucket_entries(topology, topology.balance, keys=_EVERY_REPORT, state_folder=state_folder)
    reports = sorted(readable_values(entries, BalanceReport), key=lambda report: report.policy)
    if as_json:
        click.echo(msgspec.json.encode(reports).decode())
    elif not reports:
        click.echo(f"{job} has no report yet: the first comes after autoscaling.windowSteps trainer steps")
    else:
        Console(width=_WIDTH).print(Group(*(part for report in reports for part in rendered(report))))


def rendered(report: BalanceReport) -> tuple[Table | Text, ...]:
    """Window and volumes, instances, stages, the zone, and what the configured maintainer makes of it."""
    window = Table(title=f"{report.policy}, steps {report.first_step} to {report.last_step}", title_justify="left")
    for heading in ("wall", "waiting", "produced", "accepted", "consumed", "too stale"):
        window.add_column(heading, justify="right")
    window.add_row(
        f"{report.wall_seconds:.1f} s",
        f"{report.wait_fraction:.1%}",
        *(_volume(volume) for volume in (report.produced, report.accepted, report.consumed)),
        str(report.stale_skipped),
    )
    instances = Table(box=None, pad_edge=False)
    for heading in ("instance", "pool", "state", "samples/s", "tokens/s", "versions behind", "in flight"):
        instances.add_column(heading, justify="left" if heading in ("instance", "pool", "state") else "right")
    for one in report.instances:
        instances.add_row(
            one.member_id,
            one.pool,
            one.state,
            f"{one.samples_per_second:.1f}",
            f"{one.tokens_per_second:.0f}",
            str(one.version_lag),
            str(one.in_flight),
        )
    return window, instances, *_stages(report), Text(f"{_advice(report)}\n")


def _stages(report: BalanceReport) -> tuple[Table, ...]:
    if not report.stages:
        return ()
    table = Table(box=None, pad_edge=False)
    for heading in ("stage", "groups/s", "waiting", "failed"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for one in report.stages:
        rate = one.done / report.wall_seconds if report.wall_seconds else 0.0
        table.add_row(one.stage, f"{rate:.1f}", str(one.waiting), str(one.failed))
    return (table,)


def _advice(report: BalanceReport) -> str:
    zone = f"zone {report.branch}, {report.current} instances"
    if report.target is not None:
        return f"{zone}; {report.maintainer} asks for {report.target}"
    where = f"kubectl get rlj {report.job} -o jsonpath='{{.status.autoscaling}}'"
    return f"{zone}; {report.maintainer} decides by more than one report: {where}, or the view of trimtab run"


def _volume(volume: Volume) -> str:
    return f"{volume.samples} ({volume.tokens} tokens)" if volume.tokens else str(volume.samples)
