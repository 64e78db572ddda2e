"""`python -m trimtab.devcluster.node`: one development node; `trimtab dev up` starts it with everything it needs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import click

from trimtab.devcluster.node.node import NodeSettings, run_node
from trimtab.devcluster.quantity import parsed_capacity
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.settings import LogSettings

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--name", required=True, help="Name of the Node object.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="Volumes and logs.")
@click.option("--kubeconfig", type=_FILE, required=True)
@click.option("--authority", type=_FILE, required=True, help="The cluster's certificate authority.")
@click.option("--certificate", type=_FILE, required=True, help="What the node serves logs with.")
@click.option("--key", type=_FILE, required=True)
@click.option("--port", type=int, required=True, help="Where the API server fetches logs, on loopback.")
@click.option("--capacity", multiple=True, metavar="RESOURCE=QUANTITY", help="Declare other capacity than there is.")
@click.option("--allow-host-path", is_flag=True, help="Let pods mount any folder of this machine.")
def main(
    name: str,
    folder: Path,
    kubeconfig: Path,
    authority: Path,
    certificate: Path,
    key: Path,
    port: int,
    capacity: tuple[str, ...],
    allow_host_path: bool,
) -> None:
    """Run bound pods of a cluster as processes of this machine until SIGTERM."""
    configure_logs(LogSettings(), stream=sys.stderr)
    settings = NodeSettings(
        name=name,
        folder=folder,
        kubeconfig=kubeconfig,
        authority=authority,
        certificate=certificate,
        key=key,
        port=port,
        capacity=parsed_capacity(capacity),
        host_paths_allowed=allow_host_path,
    )
    asyncio.run(_until_told_to_stop(settings))


async def _until_told_to_stop(settings: NodeSettings) -> None:
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(run_node(settings))
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    main()
