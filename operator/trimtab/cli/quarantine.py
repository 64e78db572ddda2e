"""`trimtab quarantine JOB`: the tasks that were given up, why, and what was asked for in them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimtab.cli.job_bucket import bucket_entries, of_a_job, readable_errors, readable_values
from trimtab.cli.printable import printable
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.quarantine import QuarantinedTask

_WIDTH = 140
_MESSAGE_CHARS = 200


@click.command()
@of_a_job
@click.option("--task", "task_id", metavar="ID", help="Show one task in full, with its prompt as JSON.")
def quarantine(job: str, namespace: str, state_folder: Path | None, task_id: str | None) -> None:
    """Show the tasks of JOB that were given up, the newest first.

    Reads TRIMTAB_NATS__… like pods do; for a job of `trimtab run`, give its --state-folder.
    """
    with readable_errors():
        topology = JobTopology(namespace, job)
        keys = ">" if task_id is None else topology.quarantine_key(task_id)
        entries = bucket_entries(topology, topology.quarantine, keys=keys, state_folder=state_folder)
    found = readable_values(entries, QuarantinedTask)
    if task_id is not None:
        if not found:
            raise click.ClickException(f"{job} has no task {task_id} in quarantine")
        click.echo(detailed(found[0]))
    elif not found:
        click.echo(f"{job} has nothing in quarantine")
    else:
        Console(width=_WIDTH).print(listed(found))


def listed(entries: Sequence[QuarantinedTask]) -> Table:
    """One line for each, the newest first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold")
    table.add_column("prompt", max_width=24, no_wrap=True)
    table.add_column("error", no_wrap=True)
    table.add_column("attempts", justify="right")
    table.add_column("worker", max_width=32, no_wrap=True)
    table.add_column("when", no_wrap=True)
    table.add_column("message", no_wrap=True, ratio=1)
    for entry in sorted(entries, key=lambda entry: entry.quarantined_at, reverse=True):
        # As Text, because brackets in a string are markup: these words are a user's.
        table.add_row(
            Text(entry.task_id),
            Text(_one_line(entry.prompt_id or "-")),
            Text(entry.error),
            str(entry.attempts),
            Text(_one_line(entry.worker)),
            _when(entry),
            Text(_one_line(entry.message)),
        )
    return table


def detailed(entry: QuarantinedTask) -> str:
    """Everything that is known of it, and the prompt as JSON."""
    facts = {
        "task": entry.task_id,
        "prompt": _one_line(entry.prompt_id or "-"),
        "error": entry.error,
        "attempts": str(entry.attempts),
        "worker": _one_line(f"{entry.worker}, pool {entry.pool}"),
        "when": _when(entry),
        "message": "\n          ".join(printable(line) for line in entry.message.splitlines()),
        "where": _one_line(entry.where or "-"),
    }
    lines = [f"{name:<8}  {value}" for name, value in facts.items()]
    if entry.task is None:
        lines.append("its prompt was not kept: it was too large, or the message was no task")
    else:
        lines.append(msgspec.json.format(msgspec.json.encode(entry.task.prompt), indent=2).decode())
    return "\n".join(lines)


def _when(entry: QuarantinedTask) -> str:
    return datetime.fromtimestamp(entry.quarantined_at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _one_line(text: str) -> str:
    return printable(" ".join(text.split())[:_MESSAGE_CHARS])
