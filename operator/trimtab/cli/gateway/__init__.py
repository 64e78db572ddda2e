"""`trimtab gateway FILE`: the endpoint that agents of a job ask, on this machine, to try one before it trains."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import click
from rich.console import Console

from trimtab.api.job import RLJob
from trimtab.api.manifest import UnreadableManifestError
from trimtab.api.validation import InvalidManifestError
from trimtab.cli.gateway.engines import Engines, EngineUnusable, Seat
from trimtab.cli.gateway.models import Model, base_model, newest_model
from trimtab.cli.gateway.telling import ToldSession, summary
from trimtab.cli.job_bucket import left_environment
from trimtab.cli.sources import with_models
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.pod import JobMisconfigured, read_job
from trimtab.fabric.settings import LogSettings
from trimtab.rollout.gateway.budget import Budget, BudgetLimits
from trimtab.rollout.gateway.server import GatewayServer
from trimtab.rollout.gateway.session import EpisodeSession
from trimtab.rollout.workflows.team import Assignment, Role, Team

_KEY = "trimtab"
_DAY_S = 86400.0


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--job", metavar="JOB", help="Take the newest weights that this job has published, not FILE's models.")
@click.option(
    "--state-folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Of JOB, where `trimtab run` runs it: .trimtab/JOB beside its manifest.",
)
@click.option(
    "--engine",
    "engines",
    metavar="POLICY=URL",
    multiple=True,
    help="An engine that runs already, with whatever weights it has. Otherwise the built-in one is started.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where to listen.  [default: any free port]")
def gateway(file: Path, job: str | None, state_folder: Path | None, engines: tuple[str, ...], port: int) -> None:
    """Answer agents as a worker of the RLJob in FILE would, until Ctrl-C. Nothing is trained.

    Prints the variables that lead an agent here for `eval` in its shell, and then a line for each request; in the end,
    what would have been trained. All requests are one episode.

    With --job the store is found as `trimtab weights` finds it, or in the --state-folder. Start it anew for newer
    weights.
    """
    try:
        manifest = read_job(file)
    except (InvalidManifestError, UnreadableManifestError, ValueError) as error:
        raise click.ClickException(f"{error}\nrun `trimtab validate {file}` for the full list") from error
    if state_folder is not None and job is None:
        raise click.BadParameter("it is that of a job: name it with --job", param_hint="--state-folder")
    configure_logs(LogSettings(level="warning", format="console"), stream=sys.stderr)
    running = _running_engines(engines, manifest)
    with tempfile.TemporaryDirectory(prefix="trimtab-gateway-") as scratch:
        manifest = with_models(manifest, Path(scratch), environment=os.environ, console=Console(stderr=True))
        try:
            models = _models(manifest, file, job=job, state_folder=state_folder, running=running, scratch=Path(scratch))
            asyncio.run(_serve(manifest, models, running, folder=file.parent, scratch=Path(scratch), port=port))
        except (EngineUnusable, JobMisconfigured, OSError) as error:
            raise click.ClickException(str(error)) from None


def _running_engines(engines: tuple[str, ...], manifest: RLJob) -> dict[str, str]:
    found = {}
    policies = [policy.name for policy in manifest.spec.policies]
    for engine in engines:
        policy, _, url = engine.partition("=")
        if policy not in policies or not url.startswith(("http://", "https://")):
            raise click.BadParameter(
                f"{engine!r}: give one of the policies {', '.join(policies)} and a URL, such as "
                f"{policies[0]}=http://127.0.0.1:30000",
                param_hint="--engine",
            )
        found[policy] = url
    return found


def _models(
    manifest: RLJob, file: Path, *, job: str | None, state_folder: Path | None, running: dict[str, str], scratch: Path
) -> dict[str, Model]:
    """Of the policies that an engine is to be started for."""
    environment = os.environ if state_folder is None else left_environment(state_folder)
    models = {}
    for policy in manifest.spec.policies:
        if policy.name in running:
            continue
        if policy.model is None:
            raise click.ClickException(
                f"spec.policies[{policy.name}] has no model: it is asked at an endpoint, which is not done here; give "
                f"it a model to try the agent with"
            )
        base = base_model(policy, folder=file.parent)
        if job is None or policy.frozen:
            models[policy.name] = base
        else:
            models[policy.name] = newest_model(
                policy, base, job=job, environment=environment, folder=scratch / policy.name
            )
    return models


async def _serve(
    manifest: RLJob, models: dict[str, Model], running: dict[str, str], *, folder: Path, scratch: Path, port: int
) -> None:
    stopping = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    async with AsyncExitStack() as stack:
        engines = Engines(scratch=scratch, stack=stack)
        seats = [
            engines.running(policy, running[policy.name], folder=folder)
            if policy.name in running
            else engines.started(policy, models[policy.name], folder=folder)
            for policy in manifest.spec.policies
        ]
        click.echo(f"# starting {', '.join(seat.told for seat in seats)}", err=True)
        if not await engines.serve(seats, stopping):
            return
        await _answer(_roles(manifest, seats), engines, stopping, port=port)


def _roles(manifest: RLJob, seats: list[Seat]) -> dict[str, Role]:
    by_policy = {seat.policy.name: seat for seat in seats}
    named = {role.name: role.policy for role in manifest.spec.workflow.roles}
    named = named or {policy: policy for policy in by_policy}
    return {role: by_policy[policy].role(role) for role, policy in named.items()}


async def _answer(roles: dict[str, Role], engines: Engines, stopping: asyncio.Event, *, port: int) -> None:
    team = Team(roles, Assignment(prompt={}, seed=time.time_ns(), request_id="trial", deadline_s=_DAY_S))
    told = ToldSession(
        Metrics(),
        lambda metrics: EpisodeSession(team, budget=Budget(BudgetLimits(), clock=time.monotonic), metrics=metrics),
        tell=lambda line: click.echo(line, err=True),
    )
    server = GatewayServer(roles=tuple(roles))
    async with server.listening(port=port) as url, server.admit(told, key=_KEY):
        variables = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": _KEY,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": _KEY,
        }
        for name, value in variables.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        sys.stdout.flush()
        click.echo(f"# models: {', '.join(roles)}; Ctrl-C ends it", err=True)
        await engines.until_one_ends(stopping)
        told.session.close()
    click.echo(summary(told.session, roles), err=True)
