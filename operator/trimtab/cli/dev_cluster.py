"""`trimtab dev cluster`: a real API server and nothing else."""

from __future__ import annotations

from pathlib import Path

import click

from trimtab.api.crd import custom_resource_definitions
from trimtab.cli.dev import data_folder_option, told_to_stop
from trimtab.embedded.kube.assets import control_plane_assets
from trimtab.embedded.kube.control_plane import ControlPlane


@click.command()
@data_folder_option
def cluster(data_folder: Path) -> None:
    """Run a real Kubernetes API server with Trimtab's CRDs until Ctrl-C."""
    stop = told_to_stop()
    with ControlPlane(data_folder, assets=control_plane_assets()) as plane:
        plane.install(custom_resource_definitions())
        click.echo(
            f"Kubernetes API at {plane.apiserver.url}, CRDs installed. In another terminal:\n\n"
            f"  export KUBECONFIG={plane.kubeconfig()} PATH={plane.assets.kubectl.parent}:$PATH\n"
            "  kubectl apply -f examples/quickstart/job.yaml\n"
            "  kubectl get rlj\n"
            "  kubectl explain rlj.spec\n\n"
            "There is no scheduler and no kubelet: pods stay Pending; `trimtab dev up` runs them.\n"
            "Ctrl-C stops it and keeps the data."
        )
        stop.wait()
        click.echo("stopping")
