"""`trimtab dev preempt POD`: what a spot node's reclamation looks like to a job, on demand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from trimtab.kube.access import AccessError, load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import PODS


@click.command()
@click.argument("pod", metavar="POD")
@click.option("--namespace", "-n", default="default", show_default=True, help="Namespace of the pod.")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Which cluster; as for kubectl, KUBECONFIG otherwise.",
)
def preempt(pod: str, namespace: str, kubeconfig: Path | None) -> None:
    """Evict POD by the Eviction API, which marks it as disrupted, as a cluster does that needs its place."""
    try:
        asyncio.run(_evict(kubeconfig, namespace=namespace, name=pod))
    except (AccessError, KubeError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"pod {namespace}/{pod} is being evicted")


async def _evict(kubeconfig: Path | None, *, namespace: str, name: str) -> None:
    """TooManyRequests: a disruption budget does not allow it, and the pod is left as it is."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    async with KubeClient(load_access(kubeconfig), user_agent="trimtab-cli") as client:
        await client.create(PODS, eviction, namespace=namespace, name=name, subresource="eviction")
