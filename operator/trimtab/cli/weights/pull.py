"""`trimtab weights pull`: the newest weights as a safetensors file, and later only what has changed since."""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.filesize import decimal

from trimtab.cli.state_folder import state_folder_option
from trimtab.cli.weights.access import REQUEST_DEADLINE_S, OpenWeights, policy_option, with_weights
from trimtab.cli.weights.local_store import first_models, job_of
from trimtab.cli.weights.model_folder import copy_all_but_weights, is_adapters
from trimtab.cli.weights.overview import route_text
from trimtab.cli.weights.screen import byte_bar, size
from trimtab.cli.weights.wanted_version import NoSuchVersion, Scored, by_number, kept_best, scores_of
from trimtab.cli.weights.wanted_version import best as best_of
from trimtab.fabric.bus.topology import JobTopology
from trimtab.weights.apply.copy_files import CopyInUse, DamagedCopy
from trimtab.weights.assembly import WrongWeights
from trimtab.weights.puller import PullLimits, WeightPuller
from trimtab.weights.store.kept import KeptVersions
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position
from trimtab.weights.store.rate import RateLimit
from trimtab.weights.store.route import BudgetExceeded, NoRoute, as_of, cheapest_route

_DEADLINE_S = 24 * 3600.0
_LEASE_DEADLINE_S = 10.0
_INTERRUPTED = 130


@dataclass(frozen=True)
class Pulled:
    """`route` is empty when the newest version was there already. `bytes` are of all the chunks it took, those that an
    interrupted pull had fetched included.
    """

    policy: str
    position: Position
    route: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Which:
    """Which version: the newest, where nothing is said."""

    version: int | None
    best: bool
    benchmark: str | None
    job: str | None
    namespace: str


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@policy_option
@state_folder_option
@click.option("--version", metavar="N", type=click.IntRange(min=0), help="This version in place of the newest.")
@click.option("--best", is_flag=True, help="The version with the highest score of those that were evaluated.")
@click.option("--benchmark", metavar="NAME", help="By which --best goes; needed where there are several.")
@click.option(
    "--job",
    metavar="NAME",
    help="Whose scores --best goes by. Known by itself with --state-folder;"
    " without, it goes by what the job's trainer keeps.",
)
@click.option("--namespace", default="default", show_default=True, help="Of that RLJob.")
@click.option("--rate", type=size, help="Fetch no faster than this per second, such as 50MB.")
@click.option("--max-bytes", type=size, help="Refuse when more would have to be fetched, such as 2GB.")
@click.option(
    "--model",
    metavar="MODEL",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the model that the job began with, whose configuration and tokenizer come along, so that DIR is a"
    " model. Known by itself with --state-folder.",
)
def pull(
    folder: Path,
    policy: str | None,
    state_folder: Path | None,
    version: int | None,
    best: bool,
    benchmark: str | None,
    job: str | None,
    namespace: str,
    rate: int | None,
    max_bytes: int | None,
    model: Path | None,
) -> None:
    """Bring DIR/model.safetensors to the newest version, or to another one.

    The first time everything is fetched, later only what has changed. What was fetched before Ctrl-C is used by the
    next call. With --model or --state-folder, DIR is what transformers and engines load.
    """
    wanted = Which(version=version, best=best, benchmark=benchmark, job=job, namespace=namespace)
    limits = PullLimits(max_bytes=max_bytes, rate=RateLimit(rate) if rate else None)
    try:
        pulled = brought(folder, wanted, policy=policy, state_folder=state_folder, limits=limits)
    except KeyboardInterrupt:
        click.echo(f"stopped; what has been fetched is in {_spool(folder)}, call again to go on", err=True)
        sys.exit(_INTERRUPTED)
    file = folder / "model.safetensors"
    model = model or (first_model(state_folder, pulled.policy) if state_folder is not None else None)
    if model is not None and not is_adapters(file):
        copy_all_but_weights(model, folder)
    if pulled.route:
        click.echo(f"{file} is {pulled.position}: {decimal(pulled.bytes)} ({pulled.route})")
    else:
        newest = "" if best or version is not None else ", the newest"
        click.echo(f"{file} is {pulled.position} already{newest}")


def brought(
    folder: Path, wanted: Which, *, policy: str | None, state_folder: Path | None, limits: PullLimits
) -> Pulled:
    """The wanted version into the folder. Ends the command where it cannot be had."""
    if wanted.best and wanted.version is not None:
        raise click.UsageError("--best and --version exclude each other")
    if wanted.benchmark is not None and not wanted.best:
        raise click.UsageError("--benchmark says by which benchmark --best goes")
    scores = _scores(state_folder, wanted.job, wanted.namespace) if wanted.best else ()
    return with_weights(
        lambda weights: _pulled(weights, folder, limits, wanted, scores=scores),
        policy=policy,
        state_folder=state_folder,
        failures=(WrongWeights, CopyInUse, DamagedCopy, NoSuchVersion),
    )


async def _pulled(
    weights: OpenWeights, folder: Path, limits: PullLimits, wanted: Which, *, scores: Sequence[Scored]
) -> Pulled:
    target: Position | None = None
    if wanted.version is not None:
        target = by_number(await weights.latest(), wanted.version)
    elif wanted.best:
        target = await _best(weights, scores, benchmark=wanted.benchmark)
    return await pulled_into(weights, folder, limits, target=target)


async def _best(weights: OpenWeights, scores: Sequence[Scored], *, benchmark: str | None) -> Position:
    """By the job's scores, and without those by what its trainer has kept for its score."""
    latest = await weights.latest()
    kept = await KeptVersions(weights.store, weights.policy).read(deadline_s=REQUEST_DEADLINE_S)
    if scores:
        return best_of(latest, scores, policy=weights.policy, benchmark=benchmark, kept=kept)
    if not kept.versions:
        raise NoSuchVersion(
            f"no version of {weights.policy} was kept for its score: nothing was evaluated yet, or the job has no"
            " spec.evaluation or no keepBest; --job NAME goes by the scores of a job that is still there"
        )
    return kept_best(latest, kept, policy=weights.policy, benchmark=benchmark)


async def pulled_into(
    weights: OpenWeights, folder: Path, limits: PullLimits, *, target: Position | None = None
) -> Pulled:
    puller = WeightPuller(
        weights.store, weights.policy, weights.needed_verifier(), folder=folder, spool=_spool(folder),
        member=f"pull-{socket.gethostname()}-{uuid.uuid4().hex[:8]}", limits=limits, target=target,
    )  # fmt: skip
    fetched = 0
    try:
        await puller.open()
        before = puller.held
        with byte_bar("fetching") as bar:

            def progress(done: int, total: int) -> None:
                nonlocal fetched
                fetched = total
                bar(done, total)

            try:
                position = await puller.pull(deadline_s=_DEADLINE_S, progress=progress)
            except BudgetExceeded as error:
                raise click.ClickException(
                    f"{decimal(error.needed)} would have to be fetched, and --max-bytes is {decimal(error.budget)}"
                ) from None
    finally:
        await puller.close()
        await puller.give_up_lease(deadline_s=_LEASE_DEADLINE_S)
    if before == position:
        return Pulled(weights.policy, position, "", 0)
    return Pulled(weights.policy, position, _route(await weights.latest(), before, position), fetched)


def _route(latest: Latest, before: Position | None, position: Position) -> str:
    """By the catalogue as it was when the pull looked: without what has been published since."""
    try:
        route = cheapest_route(as_of(latest, position), before)
    except (NoRoute, ValueError):
        return "by a route that has been collected since"
    return route_text(route.entries, latest)


def _scores(state_folder: Path | None, job: str | None, namespace: str) -> Sequence[Scored]:
    if job is None and state_folder is not None:
        job = job_of(state_folder)
    if job is None:
        return ()
    scores = scores_of(JobTopology(namespace, job), state_folder=state_folder)
    if not scores:
        raise click.ClickException("--best: nothing has been evaluated yet; spec.evaluation asks for it")
    return scores


def first_model(state_folder: Path, policy: str) -> Path | None:
    """None where it is not known, or no longer there."""
    known = first_models(state_folder).get(policy)
    return Path(known) if known is not None and Path(known).is_dir() else None


def _spool(folder: Path) -> Path:
    return folder / ".spool"
