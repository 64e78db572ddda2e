"""`trimtab doctor [FILE]`: what `trimtab run` looks at before it starts anything, and what is fine, told one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from trimtab.api.manifest import UnreadableManifestError
from trimtab.api.support import unsupported
from trimtab.api.validation import InvalidManifestError
from trimtab.cli.finding import Finding, Level, fine, problem
from trimtab.cli.machine import Machine, bare, weighed
from trimtab.cli.model_checks import models
from trimtab.cli.preflight import problems
from trimtab.cli.printable import printable
from trimtab.embedded.binaries import BinaryMissingError, find_binary
from trimtab.fabric.pod import read_job

_PROGRAMS = ("nats-server", "weed")
_MARKS = {Level.FINE: ("✓", "green"), Level.WARNING: ("!", "yellow"), Level.PROBLEM: ("✗", "red")}


@click.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--state-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the job's streams, weights and logs will live.  [default: .trimtab/JOB beside the manifest]",
)
@click.pass_context
def doctor(context: click.Context, file: Path | None, state_folder: Path | None) -> None:
    """Check this machine, and the RLJob in FILE, before anything starts.

    Ports, disk, memory, GPUs and server programs; of a job also its files, model families, tokenizers and chat
    templates. Exits 1 when the job cannot run.
    """
    findings = [*_programs(), *(_of_machine(state_folder) if file is None else _of_job(file, state_folder))]
    console = Console(highlight=False)
    for finding in findings:
        mark, style = _MARKS[finding.level]
        console.print(Text.assemble((f"{mark} ", style), printable(finding.text)), soft_wrap=True)
    context.exit(int(any(finding.level is Level.PROBLEM for finding in findings)))


def _programs() -> Iterator[Finding]:
    for program in _PROGRAMS:
        try:
            found = find_binary(program)
        except BinaryMissingError as error:
            yield problem(str(error))
        else:
            yield fine(f"{program} is {found}")


def _of_machine(state_folder: Path | None) -> Iterator[Finding]:
    yield from bare(Machine.here((state_folder or Path.cwd()).resolve()))


def _of_job(file: Path, state_folder: Path | None) -> Iterator[Finding]:
    try:
        job = read_job(file)
    except (InvalidManifestError, UnreadableManifestError, ValueError) as error:
        raise click.ClickException(f"{error}\nrun `trimtab validate {file}` for the full list") from error
    folder = (state_folder or file.parent / ".trimtab" / job.metadata.name).resolve()
    wrong = problems(job, file.parent)
    yield from map(problem, wrong)
    yield from (problem(f"{field}: this version does not do what it asks for") for field in unsupported(job.spec))
    if not wrong:
        yield fine(f"{file}: its files are there, and prompts and workflow can be read")
    yield from models(job, file.parent)
    yield from weighed(job, file.parent, Machine.here(folder))
