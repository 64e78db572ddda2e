"""The store of a job of `trimtab run`, for commands on weights. That of a job that has ended is started for as long as
the command takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from trimtab.cli.chronicle.file import read
from trimtab.cli.chronicle.records import Began
from trimtab.cli.ended_store import ended_environment
from trimtab.cli.job_bucket import left_environment
from trimtab.cli.state_folder import StateFolderInUse, held
from trimtab.embedded.binaries import BinaryMissingError
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.embedded.server import ServerStartError


@contextmanager
def found_in(state_folder: Path) -> Iterator[Mapping[str, str]]:
    """The settings of the job's pods, with a store that runs as long as the block."""
    try:
        with held(state_folder), EmbeddedSeaweed(state_folder / "seaweedfs", supervise=False) as server:
            yield ended_environment(state_folder, server.settings)
    except StateFolderInUse:
        yield left_environment(state_folder)
    except (ServerStartError, BinaryMissingError) as error:
        raise click.ClickException(str(error)) from None


def job_of(state_folder: Path) -> str | None:
    """The name of the job that has run there."""
    began = _began(state_folder)
    return began.job if began else None


def first_models(state_folder: Path) -> Mapping[str, str]:
    """By policy, the folder of the model that the job began with; empty for jobs of versions that did not tell."""
    began = _began(state_folder)
    return began.models if began else {}


def first_tokenizers(state_folder: Path) -> Mapping[str, str]:
    """By policy, the folder of its tokenizer, which is the model's where it has none of its own."""
    began = _began(state_folder)
    return {**began.models, **began.tokenizers} if began else {}


def has_archive(state_folder: Path) -> bool:
    """Whether the job, in any of its runs, kept its samples in object storage."""
    return any(isinstance(record, Began) and record.archives for record in read(state_folder))


def _began(state_folder: Path) -> Began | None:
    return next((record for record in reversed([*read(state_folder)]) if isinstance(record, Began)), None)
