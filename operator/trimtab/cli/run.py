"""`trimtab run FILE`: one RLJob on this machine, with embedded NATS and S3. Ctrl-C drains; running it again resumes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from trimtab.api.job import RLJob
from trimtab.api.manifest import UnreadableManifestError
from trimtab.api.support import unsupported, without_meaning_here
from trimtab.api.validation import InvalidManifestError
from trimtab.cli.view import evaluation_lines, render
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import LogSettings
from trimtab.operator.apply.local_secrets import SecretMissing, secret_value
from trimtab.operator.local_job import JobFailed, LocalJob

_REFRESH_S = 0.5


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--state-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the job's streams, weights and logs live.  [default: .trimtab/JOB beside the manifest]",
)
@click.option("--fresh", is_flag=True, help="Forget what an earlier run left in the state folder.")
def run(file: Path, state_folder: Path | None, fresh: bool) -> None:
    """Run the RLJob in FILE on this machine."""
    try:
        job = read_job(file)
    except (InvalidManifestError, UnreadableManifestError, ValueError) as error:
        raise click.ClickException(f"{error}\nrun `trimtab validate {file}` for the full list") from error
    _check_supported(job)
    console = Console(stderr=True)
    if idle := without_meaning_here(job.spec):
        console.print(f"without meaning on one machine: {', '.join(idle)}", style="yellow", soft_wrap=True)
    _check_paths(job, file.parent)
    _check_secrets(job)
    folder = (state_folder or file.parent / ".trimtab" / job.metadata.name).resolve()
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    succeeded = folder / "succeeded"
    if succeeded.exists():
        console.print(f"{job.metadata.name} has succeeded already ({folder}); --fresh begins anew", soft_wrap=True)
        return
    try:
        has_succeeded = asyncio.run(_run(job, file, folder, console))
    except JobFailed as failure:
        raise click.ClickException(f"{failure}\nlogs are in {folder / 'logs'}") from failure
    if has_succeeded:
        succeeded.touch()
        console.print(f"{job.metadata.name} succeeded; weights, streams and logs are in {folder}", soft_wrap=True)
    else:
        console.print(
            f"{job.metadata.name} stopped; run the same command to resume, --fresh to begin anew", soft_wrap=True
        )
        sys.exit(130)


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


def _check_paths(job: RLJob, folder: Path) -> None:
    """What is missing beside the manifest is better said before anything starts."""
    paths = {f"policies[{policy.name}].model.uri": policy.model.uri for policy in job.spec.policies}
    paths |= {
        f"data.prompts[{source.name}].jsonl.uri": source.jsonl.uri
        for source in job.spec.data.prompts
        if source.jsonl is not None
    }
    missing = [
        f"spec.{field}: {folder / uri} does not exist" for field, uri in paths.items() if not (folder / uri).exists()
    ]
    if missing:
        raise click.ClickException("\n".join(missing))


def _check_secrets(job: RLJob) -> None:
    named = {f"pools[{pool.name}].engine.apiKeySecret": pool.engine.api_key_secret for pool in job.spec.pools}
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


async def _run(job: RLJob, file: Path, folder: Path, console: Console) -> bool:
    stopping = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    with (folder / "run.log").open("a") as log:
        configure_logs(LogSettings(format="json"), stream=log)
        local = LocalJob(job, job_file=file, folder=folder)
        running = asyncio.create_task(local.run(stopping))
        viewing = asyncio.create_task(_view(local, console))
        try:
            return await running
        finally:
            viewing.cancel()
            await asyncio.gather(viewing, return_exceptions=True)


async def _view(local: LocalJob, console: Console) -> None:
    """A live panel on a terminal, a line every few steps elsewhere."""
    started = time.monotonic()
    max_steps = local.job.spec.max_steps
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        told = -1
        evaluations: set[str] = set()
        while True:
            await asyncio.sleep(_REFRESH_S)
            if local.watch is None:
                continue
            if console.is_terminal:
                live.update(
                    render(
                        local.job.metadata.name,
                        local.watch.policies,
                        local.watch.members.present,
                        local.objects.job.status.pools if local.objects.job.status else (),
                        activity=local.objects.activity,
                        restarts=local.executor.restarts(),
                        failing=local.executor.failing(),
                        elapsed_s=time.monotonic() - started,
                        max_steps=max_steps,
                    )
                )
            else:
                elapsed_s = time.monotonic() - started
                told = _tell(local, console, told=told, elapsed_s=elapsed_s)
                for line in _new_evaluations(local, told=evaluations):
                    console.print(f"{elapsed_s:6.1f} s  {line}", soft_wrap=True)


def _tell(local: LocalJob, console: Console, *, told: int, elapsed_s: float) -> int:
    assert local.watch is not None
    newest = max((view.steps[-1].step for view in local.watch.policies.values() if view.steps), default=-1)
    if newest >= told + 5:
        for name, view in local.watch.policies.items():
            if view.steps:
                last = view.steps[-1]
                console.print(
                    f"{elapsed_s:6.1f} s  {name}  step {last.step + 1}  reward {last.reward:.3f}"
                    f"  waiting {last.wait_fraction:.0%}  staleness {last.staleness:.1f}"
                    f"  version {view.weights.version if view.weights else 0}",
                    soft_wrap=True,
                )
        return newest
    return told


def _new_evaluations(local: LocalJob, *, told: set[str]) -> list[str]:
    """Results that were not told yet; they are now."""
    assert local.watch is not None
    lines = [f"{name}  {line}" for name, view in local.watch.policies.items() for line in evaluation_lines(view)]
    new = [line for line in lines if line not in told]
    told.update(new)
    return new
