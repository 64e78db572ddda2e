"""`trimtab validate`: every problem of every manifest, with line, field and fix, without a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from trimtab.api.manifest import MAX_BYTES, Document, UnreadableManifestError, read_manifest
from trimtab.api.review import review
from trimtab.api.validation import is_ours
from trimtab.cli.printable import printable

EXIT_PROBLEMS = 1
EXIT_UNREADABLE = 2


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.pass_context
def validate(context: click.Context, files: tuple[str, ...]) -> None:
    """Check manifests offline, as the API server would.

    FILE may hold several YAML documents; - reads standard input. Documents of other API groups are named and left
    alone. Exits 1 when there are problems and 2 when a file cannot be read.
    """
    context.exit(max([_validated(file) for file in files]))


def _validated(file: str) -> int:
    try:
        documents = read_manifest(_read(file))
    except (UnreadableManifestError, OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        click.echo(f"{printable(file)}: unreadable: {printable(reason)}", err=True)
        return EXIT_UNREADABLE
    checked = [document for document in documents if is_ours(document.value)]
    count = sum(_report(file, document) for document in checked)
    for document in documents:
        if not is_ours(document.value):
            click.echo(f"{printable(file)}:{document.marks.line}: not checked: {_title(document.value)} is not ours")
    if not checked:
        click.echo(f"{printable(file)}: no document of group rl.trimtab.dev in it", err=True)
        return EXIT_PROBLEMS
    if count:
        click.echo(f"{printable(file)}: {count} problem{'s' if count > 1 else ''}", err=True)
    return EXIT_PROBLEMS if count else 0


def _report(file: str, document: Document) -> int:
    """Prints what is wrong with one document, or that nothing is, and returns the number of problems."""
    reviewed = review(document.value)
    title = _title(document.value)
    for problem in reviewed.problems:
        place = f"{printable(file)}:{document.line(problem.path)}: document {document.index}: {title}"
        click.echo(f"{place}: {printable(problem.field or 'document')}: {printable(problem.message)}", err=True)
    for warning in reviewed.warnings:
        click.echo(f"{printable(file)}:{document.marks.line}: {title}: warning: {printable(warning)}", err=True)
    if not reviewed.problems:
        click.echo(f"{printable(file)}:{document.marks.line}: {title} is valid")
    return len(reviewed.problems)


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with Path(file).open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _title(value: Any) -> str:
    if not isinstance(value, dict):
        return "document"
    metadata = value.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return printable(f"{str(value.get('kind', '?'))[:63]}/{str(name or '?')[:253]}")


if __name__ == "__main__":
    validate()
