"""`trimtab evaluation JOB`: how each version of each policy did on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from trimtab.cli.job_bucket import bucket_entries, json_option, of_a_job, readable_errors, readable_values
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.evaluation import EvaluationResult

_EVERY_RESULT = "*.evaluation.*.*"
_WIDTH = 110


@click.command()
@of_a_job
@json_option
def evaluation(job: str, namespace: str, state_folder: Path | None, as_json: bool) -> None:
    """Show the results of JOB on its benchmarks, version by version.

    Reads TRIMTAB_NATS__… like pods do; for a job of `trimtab run`, give its --state-folder.
    """
    with readable_errors():
        topology = JobTopology(namespace, job)
        entries = bucket_entries(topology, topology.balance, keys=_EVERY_RESULT, state_folder=state_folder)
    results = sorted(
        readable_values(entries, EvaluationResult),
        key=lambda result: (result.policy, result.benchmark, result.version),
    )
    if as_json:
        click.echo(msgspec.json.encode(results).decode())
    elif not results:
        click.echo(f"{job} has no results: it has no spec.evaluation, or the first round is not over")
    else:
        Console(width=_WIDTH).print(rendered(results))


def bests(results: Sequence[EvaluationResult]) -> dict[tuple[str, str], int | None]:
    """By policy and benchmark the version that did best, of equal ones the newest."""
    found: dict[tuple[str, str], int | None] = {(result.policy, result.benchmark): None for result in results}
    ranked = sorted(
        (result for result in results if result.score is not None), key=lambda one: (one.score, one.version)
    )
    return found | {(result.policy, result.benchmark): result.version for result in ranked}


def rendered(results: Sequence[EvaluationResult]) -> Table:
    table = Table(box=None, pad_edge=False)
    best = bests(results)
    for heading in ("policy", "benchmark", "version", "score", "episodes", "failed", "best"):
        table.add_column(heading, justify="left" if heading in ("policy", "benchmark") else "right")
    for result in results:
        table.add_row(
            result.policy,
            result.benchmark,
            str(result.version),
            "-" if result.score is None else f"{result.score:.3f}",
            str(result.episodes),
            str(result.failed),
            "best" if best[result.policy, result.benchmark] == result.version else "",
        )
    return table
