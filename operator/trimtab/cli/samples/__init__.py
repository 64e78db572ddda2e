"""`trimtab samples JOB`: what the models of a job said, and what came of it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

import click
from rich.console import Console

from trimtab.cli.job_bucket import of_a_job, readable_errors, with_bus
from trimtab.cli.samples.archive import SampleArchive, is_needed
from trimtab.cli.samples.choice import NothingChosen, Order, Wanted, chosen
from trimtab.cli.samples.export import record_of, writer_to
from trimtab.cli.samples.pieces import pieces
from trimtab.cli.samples.reading import JobStore, complain, stored_rows, trajectories
from trimtab.cli.samples.screen import LEGEND, lines
from trimtab.cli.samples.tokenizers import Tokenizers
from trimtab.cli.weights.local_store import first_tokenizers, has_archive
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.errors import ObjectStoreError

_ON_SCREEN = 3


@click.command()
@of_a_job
@click.option("--policy", metavar="NAME", help="Rows of this policy alone.")
@click.option("--step", type=click.IntRange(min=1), help="Rows that this step was trained on, as steps are told.")
@click.option("--benchmark", metavar="NAME", help="Rows of this benchmark's evaluation, in place of those of training.")
@click.option("--best", "order", flag_value=Order.BEST, type=Order, help="Those of the highest reward first.")
@click.option("--worst", "order", flag_value=Order.WORST, type=Order, help="Those of the lowest reward first.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"So many rows.  [default: {_ON_SCREEN}, and all with --output]",
)
@click.option(
    "--output",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Write rows into x.jsonl or x.parquet, or without an ending into a folder of Hugging Face's datasets.",
)
@click.option(
    "--tokenizer",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the model's tokenizer. Known by itself with --state-folder.",
)
def samples(
    job: str,
    namespace: str,
    state_folder: Path | None,
    policy: str | None,
    step: int | None,
    benchmark: str | None,
    order: Order | None,
    limit: int | None,
    output: Path | None,
    tokenizer: Path | None,
) -> None:
    """Show what the models of JOB said: the newest rows first.

    Rows come from the stream of trajectories, which lets go of them some time after they were trained, and then from
    data.archive, if the job has one. Reads TRIMTAB_NATS__… and TRIMTAB_OBJECT_STORE__… like pods do; for a job of
    `trimtab run`, give its --state-folder.
    """
    wanted = Wanted(
        policy=policy,
        step=step,
        benchmark=benchmark,
        order=order or Order.NEWEST,
        limit=limit or (None if output is not None else _ON_SCREEN),
    )
    tokenizers = Tokenizers(named=tokenizer, known={} if state_folder is None else first_tokenizers(state_folder))
    topology = JobTopology(namespace, job)
    may_be_archived = state_folder is None or has_archive(state_folder)
    console = Console(highlight=False)

    async def work(bus: Bus) -> int:
        stored = await stored_rows(bus, topology, complain=complain)
        count = 0
        async with JobStore(state_folder) as store:
            archive: SampleArchive | None = None
            steps: Collection[int] = ()
            if may_be_archived and store.is_known and is_needed(wanted, stored):
                archive = SampleArchive(await store.open(), complain)
                archived, steps = await archive.rows(wanted, stored)
                stored += archived
            rows = chosen(stored, wanted, archived=steps)
            with nullcontext() if output is None else writer_to(output) as writer:
                async for row, trajectory in trajectories(bus, topology, rows, store, archive, complain=complain):
                    text = pieces(trajectory, tokenizers.decode(trajectory.policy))
                    if writer is not None:
                        writer.add(record_of(row, trajectory, text))
                    else:
                        for line in lines(row, trajectory, text):
                            console.print(line, soft_wrap=True)
                    count += 1
        return count

    try:
        with readable_errors():
            count = with_bus(work, topology, state_folder=state_folder)
    except (NothingChosen, ObjectStoreError) as error:
        raise click.ClickException(f"{job}: {error}") from None
    if output is not None:
        click.echo(f"{output} has {count} rows")
    elif console.color_system is not None and count:
        console.print(LEGEND)
