"""`trimtab dev preempt POD`: what a spot node's reclamation looks like to a job, on demand."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click

from trimtab.devcluster.node.preemption import preempt_pod
from trimtab.kube.access import AccessError, load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError


@click.command()
@click.argument("pod", metavar="POD")
@click.option("--namespace", "-n", default="default", show_default=True, help="Namespace of the pod.")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Which cluster; as for kubectl, KUBECONFIG otherwise.",
)
def preempt(pod: str, namespace: str, kubeconfig: Path | None) -> None:
    """Mark POD as disrupted and evict it, as a cluster does that needs its place."""
    try:
        asyncio.run(_preempt(kubeconfig, namespace=namespace, name=pod))
    except (AccessError, KubeError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"pod {namespace}/{pod} is being evicted")


async def _preempt(kubeconfig: Path | None, *, namespace: str, name: str) -> None:
    async with KubeClient(load_access(kubeconfig), user_agent="trimtab-cli") as client:
        await preempt_pod(client, namespace=namespace, name=name, now=time.time())
