"""`trimtab init TEMPLATE [DIR]`: a job that can be run, with the code that is its own, prompts, and a test of it."""

from __future__ import annotations

import re
from pathlib import Path

import click

from trimtab.cli.init.rows import ROWS
from trimtab.cli.init.writing import FileThere, write_job
from trimtab.cli.printable import printable

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")


@click.command()
@click.argument("template", type=click.Choice(sorted(ROWS)))
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", help="Of the job.  [default: the folder's]")
@click.option(
    "--model", default="model", show_default=True, help="Folder of the model to train, as the manifest is to name it."
)
def init(template: str, folder: Path | None, name: str | None, model: str) -> None:
    """Write a job after TEMPLATE into DIR, which is called as the template where it is left out.

    \b
    single-turn      a question, an answer, a reward function of your own
    tool-agent       several turns with a tool
    solver-verifier  two roles: one answers, the other judges
    external-agent   a program that speaks OpenAI's protocol, as it is
    code-tests       programs in a sandbox, judged by tests
    search           a policy that looks things up in a corpus

    Nothing that is there is written over.
    """
    folder = folder or Path(template)
    job = name or folder.resolve().name
    if _NAME.fullmatch(job) is None:
        raise click.BadParameter(
            f"{printable(job)!r} is no name of a job: up to 40 small letters, digits and dashes, a letter first",
            param_hint="--name",
        )
    if not model or any(character.isspace() for character in model):
        raise click.BadParameter("a folder without spaces in its name is wanted", param_hint="--model")
    try:
        written = write_job(template, folder, name=job, model=model)
    except FileThere as error:
        raise click.ClickException(str(error)) from None
    for file in written:
        click.echo(f"wrote {file}")
    click.echo(f"python -m pytest {folder}\ntrimtab doctor {folder / 'job.yaml'}\ntrimtab run {folder / 'job.yaml'}")
