"""`trimtab graph`: a job's data as a graph, from prompts to weights, with where each node runs and what flows."""

from __future__ import annotations

from pathlib import Path

import click

from trimtab.api.job import RLJob
from trimtab.api.manifest import UnreadableManifestError, read_manifest
from trimtab.api.review import review
from trimtab.api.validation import is_ours, parse
from trimtab.cli.graph.drawing import svg_of
from trimtab.cli.graph.nodes import graph_of
from trimtab.cli.graph.text import text_of


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a drawing to this file instead.")
def graph(file: Path, svg: Path | None) -> None:
    """Show what happens to the data of the RLJob in FILE: prompts, roles, stages, buffers, trainers and weights."""
    drawn = graph_of(_job(file))
    if svg is None:
        click.echo(text_of(drawn), nl=False)
        return
    svg.write_text(svg_of(drawn), encoding="utf-8")
    click.echo(f"wrote {svg}")


def _job(file: Path) -> RLJob:
    try:
        documents = [document.value for document in read_manifest(file.read_bytes()) if is_ours(document.value)]
    except UnreadableManifestError as error:
        raise click.ClickException(f"{file}: {error}") from None
    jobs = [document for document in documents if document.get("kind") == "RLJob"]
    if len(jobs) != 1:
        raise click.ClickException(f"{file}: expected one RLJob, found {len(jobs)}")
    problems = review(jobs[0]).problems
    if problems:
        listed = "\n".join(f"  {problem.field or 'document'}: {problem.message}" for problem in problems)
        raise click.ClickException(f"{file} is not valid:\n{listed}")
    job = parse(jobs[0])
    assert isinstance(job, RLJob)
    return job
