"""`trimtab dev`: what a developer of manifests or of Trimtab itself starts on a laptop."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from trimtab.api.crd import custom_resource_definitions
from trimtab.embedded.kube.assets import control_plane_assets
from trimtab.embedded.kube.control_plane import ControlPlane


@click.group()
def dev() -> None:
    """Development servers on this machine."""


@dev.command()
@click.option(
    "--data-folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".trimtab/cluster"),
    show_default=True,
    help="Where the cluster's state lives; start again with the same folder to find your objects.",
)
def cluster(data_folder: Path) -> None:
    """Run a real Kubernetes API server with Trimtab's CRDs until Ctrl-C."""
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stop.set())
    with ControlPlane(data_folder, assets=control_plane_assets()) as plane:
        plane.install(custom_resource_definitions())
        click.echo(
            f"Kubernetes API at {plane.apiserver.url}, CRDs installed. In another terminal:\n\n"
            f"  export KUBECONFIG={plane.kubeconfig()} PATH={plane.assets.kubectl.parent}:$PATH\n"
            "  kubectl apply -f examples/quickstart/job.yaml\n"
            "  kubectl get rlj\n"
            "  kubectl explain rlj.spec\n\n"
            "There is no scheduler and no kubelet: pods stay Pending. Ctrl-C stops it and keeps the data."
        )
        stop.wait()
        click.echo("stopping")
