"""`trimtab run FILE`: one RLJob on this machine, with embedded NATS and S3. Ctrl-C drains; running it again resumes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console

from trimtab.api.goals import Goals, raised
from trimtab.api.job import RLJob
from trimtab.api.live_settings import changes
from trimtab.api.manifest import UnreadableManifestError
from trimtab.api.support import unsupported, without_meaning_here
from trimtab.api.transition import transition_problems
from trimtab.api.validation import InvalidManifestError
from trimtab.cli.chronicle.chronicler import Chronicler
from trimtab.cli.chronicle.file import ChronicleFile, UnreadableChronicle, read
from trimtab.cli.chronicle.story import told
from trimtab.cli.display import print_summary, show
from trimtab.cli.finding import Level
from trimtab.cli.machine import Machine, weighed
from trimtab.cli.model_checks import models
from trimtab.cli.preflight import problems
from trimtab.cli.report.page import write_report
from trimtab.cli.resuming import find_beginning
from trimtab.cli.sources import with_fetched
from trimtab.cli.state_folder import StateFolderInUse, clear, held
from trimtab.cli.tracking.processes import tracked
from trimtab.cli.tracking.trackers import problems as missing_trackers
from trimtab.embedded.binaries import BinaryMissingError
from trimtab.embedded.server import ServerStartError
from trimtab.fabric.durable_files import replace_file
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import LogSettings
from trimtab.operator.local.executor import SecretMissing, secret_value
from trimtab.operator.local.job import JobFailed, LocalJob
from trimtab.operator.local.state_files import MANIFEST_FILE, SUCCEEDED_FILE


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--state-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the job's streams, weights and logs live.  [default: .trimtab/JOB beside the manifest]",
)
@click.option("--fresh", is_flag=True, help="Forget what an earlier run left in the state folder.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw the live view, as it was at the newest step, into this SVG file.",
)
def run(file: Path, state_folder: Path | None, fresh: bool, picture: Path | None) -> None:
    """Run the RLJob in FILE on this machine."""
    try:
        job = read_job(file)
    except (InvalidManifestError, UnreadableManifestError, ValueError) as error:
        raise click.ClickException(f"{error}\nrun `trimtab validate {file}` for the full list") from error
    _check_supported(job)
    if picture is not None and not picture.parent.is_dir():
        raise click.BadParameter(f"there is no folder {picture.parent}", param_hint="--picture")
    console = Console(stderr=True)
    if idle := without_meaning_here(job.spec):
        console.print(f"without meaning on one machine: {', '.join(idle)}", style="yellow", soft_wrap=True)
    folder = (state_folder or file.parent / ".trimtab" / job.metadata.name).resolve()
    _check_before_it_starts(job, file.parent, folder, console)
    _check_secrets(job)
    if wrong := missing_trackers(job.spec.tracking, os.environ):
        raise click.ClickException("\n".join(wrong))
    try:
        with held(folder):
            if fresh:
                clear(folder)
            find_beginning(job, folder, environment=os.environ, console=console)
            here = with_fetched(job, folder, environment=os.environ, console=console)
            if here is not job:
                _check_before_it_starts(here, file.parent, folder, console)
            _run_to_its_end(job, here, file, folder, console, picture)
    except StateFolderInUse as error:
        raise click.ClickException(
            f"{job.metadata.name} is running already: {error}. Nothing was changed; stop that process first, or give "
            "this run a --state-folder of its own"
        ) from None


def _run_to_its_end(job: RLJob, here: RLJob, file: Path, folder: Path, console: Console, picture: Path | None) -> None:
    changed = changed_since(job, folder)
    for change in changed:
        console.print(f"changed since the last run: {change}", soft_wrap=True, markup=False, highlight=False)
    _keep_manifest(file, folder)
    succeeded = folder / SUCCEEDED_FILE
    if succeeded.exists():
        if not raised(job.spec.goals, _reached(succeeded)):
            console.print(
                f"{job.metadata.name} has succeeded already ({folder}); raise maxSteps, targetReward or data.epochs to"
                " go on, --fresh begins anew",
                soft_wrap=True,
            )
            return
        succeeded.unlink()
    try:
        has_succeeded = asyncio.run(_run(job, here, file, folder, console, picture, changed=changed))
    except JobFailed as failure:
        _conclude(folder, console)
        raise click.ClickException(f"{failure}\nlogs are in {folder / 'logs'}") from failure
    except (ServerStartError, BinaryMissingError) as error:
        raise click.ClickException(str(error)) from error
    except UnreadableChronicle as error:
        raise click.ClickException(f"{error}\nmove the file away to resume without it") from error
    _conclude(folder, console)
    if has_succeeded:
        replace_file(succeeded, job.spec.goals.model_dump_json().encode())
        console.print(
            f"{job.metadata.name} succeeded; weights, streams and logs are in {folder}\n"
            f"its model: trimtab weights pull DIR --state-folder {folder}",
            soft_wrap=True,
        )
    else:
        console.print(
            f"{job.metadata.name} stopped; run the same command to resume, --fresh to begin anew", soft_wrap=True
        )
        sys.exit(130)


def _check_before_it_starts(job: RLJob, beside: Path, folder: Path, console: Console) -> None:
    """What `trimtab doctor` looks at too."""
    findings = [*models(job, beside), *weighed(job, beside, Machine.here(folder))]
    if wrong := [*problems(job, beside), *(one.text for one in findings if one.level is Level.PROBLEM)]:
        raise click.ClickException("\n".join(wrong))
    for one in findings:
        if one.level is Level.WARNING:
            console.print(one.text, style="yellow", soft_wrap=True, markup=False, highlight=False)


def changed_since(job: RLJob, folder: Path) -> tuple[str, ...]:
    """Of settings of learning, since the run that this one goes on from. Ends the command where something was changed
    that may not be."""
    try:
        before = read_job(folder / MANIFEST_FILE)
    except (InvalidManifestError, UnreadableManifestError, OSError, ValueError):
        return ()  # there was none, or one of a version that knew other fields
    if wrong := transition_problems(before, job):
        listed = "\n".join(f"{problem.field}: {problem.message}" for problem in wrong)
        raise click.ClickException(f"{listed}\nchange it back to resume, or begin anew with --fresh")
    return changes(before.spec.live_settings, job.spec.live_settings)


def _keep_manifest(file: Path, folder: Path) -> None:
    """For `trimtab backup`, which is told the state folder alone."""
    replace_file(folder / MANIFEST_FILE, file.read_bytes())


def _reached(succeeded: Path) -> Goals | None:
    """What the job has succeeded in. Versions before this one have written nothing there."""
    try:
        return Goals.model_validate_json(succeeded.read_text())
    except ValidationError:
        return None


def _check_supported(job: RLJob) -> None:
    source = job.spec.workflow.source
    if source is not None and source.config_map is not None:
        raise click.ClickException(
            "spec.workflow.source.configMap: there are no ConfigMaps on one machine; put the module beside the manifest"
        )
    fields = unsupported(job.spec)
    if fields:
        listed = "\n  ".join(fields)
        raise click.ClickException(f"this version does not do what these fields ask for; leave them out:\n  {listed}")


def _check_secrets(job: RLJob) -> None:
    named = {f"pools[{pool.name}].engine.apiKeySecret": pool.engine.api_key_secret for pool in job.spec.pools}
    for pool in job.spec.pools:
        for engines in pool.engines:
            if engines.endpoint is not None:
                field = f"pools[{pool.name}].engines[{engines.policy}].endpoint.apiKeySecret"
                named[field] = engines.endpoint.api_key_secret
    if (agent := job.spec.autoscaling.maintainer.agent) is not None:
        named["autoscaling.maintainer.agent.apiKeySecret"] = agent.api_key_secret
    missing = []
    for field, secret in named.items():
        if secret is not None:
            try:
                secret_value(secret, os.environ)
            except SecretMissing as error:
                missing.append(f"spec.{field}: {error}")
    if missing:
        raise click.ClickException("\n".join(missing))


async def _run(
    job: RLJob, here: RLJob, file: Path, folder: Path, console: Console, picture: Path | None, *,
    changed: tuple[str, ...],
) -> bool:  # fmt: skip
    stopping = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    with (
        (folder / "run.log").open("a") as log,
        tracked(job, file, folder, environment=os.environ),
        ChronicleFile(folder) as chronicle,
    ):
        configure_logs(LogSettings(format="json"), stream=log)
        chronicler = Chronicler(chronicle, told(read(folder)), clock=time.time)
        chronicler.begin(here, beside=file.parent, changed=changed)
        local = LocalJob(job, job_file=file, folder=folder, audience=chronicler)
        running = asyncio.create_task(local.run(stopping))
        showing = asyncio.create_task(show(local, chronicler, console, picture=picture))
        try:
            has_succeeded = await running
        except JobFailed as failure:
            chronicler.end("failed", why=str(failure))
            raise
        else:
            chronicler.end("succeeded" if has_succeeded else "stopped")
            return has_succeeded
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)


def _conclude(folder: Path, console: Console) -> None:
    """However it ended: what came of it, in figures and as a page to keep."""
    story = told(read(folder))
    if not any(policy.steps for policy in story.policies.values()):
        return
    print_summary(story, console)
    console.print(f"report: {write_report(story, folder)}", soft_wrap=True, highlight=False)
