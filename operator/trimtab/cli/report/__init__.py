"""`trimtab report JOB_FOLDER`: the page that `trimtab run` leaves at its end, made again from the job's history."""

from __future__ import annotations

from pathlib import Path

import click

from trimtab.cli.chronicle.file import FILE_NAME, UnreadableChronicle, read
from trimtab.cli.chronicle.story import told
from trimtab.cli.report.page import write_report


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def report(folder: Path) -> None:
    """Write report.html into FOLDER, the state folder of a job of `trimtab run`.

    It may run meanwhile. The page is one file that needs no network.
    """
    try:
        story = told(read(folder))
    except UnreadableChronicle as error:
        raise click.ClickException(str(error)) from error
    if story.began is None:
        raise click.ClickException(
            f"{folder} has no {FILE_NAME} with a run in it; give the folder that `trimtab run` named, "
            "by default .trimtab/JOB beside the manifest"
        )
    click.echo(str(write_report(story, folder)))
