"""`trimtab ui`: a page to watch runs on, while they run and afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import click

from trimtab.cli.ui.access_token import kept_token
from trimtab.cli.ui.book import Source
from trimtab.cli.ui.guard import TOKEN, Guard
from trimtab.cli.ui.server import Server, serving
from trimtab.embedded.ports import free_ports, is_free
from trimtab.fabric.logs import REDACTOR, configure_logs
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.probes import Probes
from trimtab.fabric.settings import LogSettings, ProbeSettings

_HOST = "127.0.0.1"
_PORT = 7272
_BEAT_S = 1.0


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(min=1, max=65535),
    help=f"Of 127.0.0.1.  [default: {_PORT}, or another one where that is taken]",
)
@click.option("--kube", is_flag=True, help="Show the RLJobs of a cluster: that of the usual context, or of the pod.")
@click.option("--context", metavar="NAME", help="Another context of the kubeconfig, with --kube.")
@click.option(
    "--namespace", "namespaces", metavar="NAME", multiple=True, help="Of the cluster's RLJobs.  [default: all of them]"
)
@click.option(
    "--tokenizer",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the models' tokenizer, for samples. Known by itself of jobs of `trimtab run`.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Let in whoever reaches the port: in a pod, where that takes the right to forward its ports.",
)
@click.option(
    "--probes", type=click.IntRange(min=1, max=65535), metavar="PORT", help="In a pod: answer the kubelet on this port."
)
def ui(
    folders: tuple[Path, ...],
    port: int | None,
    kube: bool,
    context: str | None,
    namespaces: tuple[str, ...],
    tokenizer: Path | None,
    no_token: bool,
    probes: int | None,
) -> None:
    """Serve a page that shows the runs below FOLDERS, by default this one: curves, fleets, decisions, samples.

    With --kube it shows the jobs of a cluster, and runs below FOLDERS where some are given. It changes nothing, listens
    on this machine alone, and ends with Ctrl-C.
    """
    sources = _sources(folders, kube=kube, context=context, namespaces=namespaces)
    token = None if no_token else kept_token(os.environ)
    secrets = [] if token is None else [token]
    configure_logs(LogSettings(level="warning", format="console"), stream=sys.stderr, secrets=secrets)
    if port is None:
        port = _PORT if is_free(_PORT) else free_ports(1)[0]
    server = Server(sources, Guard(port=port, token=token), tokenizer=tokenizer)
    address = f"http://{_HOST}:{port}/" + ("" if token is None else f"?{TOKEN}={token}")
    try:
        asyncio.run(_serve(server, port, address, probes=probes))
    except OSError as error:
        raise click.ClickException(f"--port: {_HOST}:{port} cannot be listened on: {error.strerror or error}") from None


def _sources(
    folders: tuple[Path, ...], *, kube: bool, context: str | None, namespaces: tuple[str, ...]
) -> list[Source]:
    """What each needs is imported for it alone: the operator's image has nothing of a run on one machine."""
    if not kube and (context or namespaces):
        raise click.UsageError("--context and --namespace are of a cluster: give --kube with them")
    sources: list[Source] = []
    if kube:
        from trimtab.cli.ui.cluster import ClusterRuns
        from trimtab.kube.access import AccessError, load_access

        try:
            access = load_access(context=context)
        except AccessError as error:
            raise click.ClickException(str(error)) from None
        sources += [ClusterRuns(access, namespace=namespace) for namespace in namespaces or (None,)]
    if folders or not kube:
        from trimtab.cli.ui.local import LocalRuns

        sources.append(LocalRuns(list(folders) or [Path()], beside=Path.cwd()))
    return sources


async def _serve(server: Server, port: int, address: str, *, probes: int | None) -> None:
    stopping = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    async with serving(server, host=_HOST, port=port), AsyncExitStack() as stack:
        click.echo(address)
        if probes is None:
            await stopping.wait()
            return
        answers = Probes(ProbeSettings(port=probes), Metrics(), REDACTOR, clock=time.monotonic)
        answers.add_check("runs", lambda: server.trouble or None)
        await stack.enter_async_context(answers)
        while not stopping.is_set():
            answers.beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEAT_S):
                    await stopping.wait()
