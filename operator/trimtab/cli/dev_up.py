"""`trimtab dev up`: a whole cluster on one machine, its pods run as processes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from trimtab.api.crd import custom_resource_definitions
from trimtab.cli.dev import data_folder_option, told_to_stop
from trimtab.cli.dev_operator import DevelopmentOperator
from trimtab.devcluster.cluster import DevelopmentCluster
from trimtab.devcluster.container.sandbox import find_sandbox
from trimtab.devcluster.quantity import InvalidQuantity, parsed_capacity
from trimtab.embedded.kube.assets import control_plane_assets, controller_assets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.embedded.seaweedfs import EmbeddedSeaweed


@click.command()
@data_folder_option
@click.option(
    "--capacity",
    multiple=True,
    metavar="RESOURCE=QUANTITY",
    help="Declare other capacity than this machine has, such as cpu=64 or nvidia.com/gpu=8; may be repeated.",
)
@click.option("--allow-host-path", is_flag=True, help="Let pods mount any folder of this machine by hostPath.")
@click.option(
    "--operator/--no-operator",
    default=True,
    show_default=True,
    help="Run Trimtab's operator, too, and the NATS and S3 that its jobs use.",
)
def up(data_folder: Path, capacity: tuple[str, ...], allow_host_path: bool, operator: bool) -> None:
    """Run Kubernetes' control plane, Trimtab's operator, and a node that runs pods as processes, until Ctrl-C."""
    try:
        parsed_capacity(capacity)
    except InvalidQuantity as error:
        raise click.BadParameter(str(error), param_hint="--capacity") from None
    sandbox, problem = find_sandbox()
    if sandbox is None:
        click.echo(f"Pods with volumes will be refused: {problem}", err=True)
    stop = told_to_stop()
    servers, controllers = control_plane_assets(), controller_assets()
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(data_folder, assets=servers))
        plane.install(custom_resource_definitions())
        cluster = stack.enter_context(
            DevelopmentCluster(
                data_folder,
                control_plane=plane,
                assets=controllers,
                capacity=capacity,
                host_paths_allowed=allow_host_path,
            )
        )
        looking = ""
        if operator:
            nats = stack.enter_context(EmbeddedNatsWithAccounts(data_folder / "nats"))
            store = stack.enter_context(EmbeddedSeaweed(data_folder / "seaweedfs"))
            stack.enter_context(
                DevelopmentOperator(data_folder / "operator", control_plane=plane, nats=nats, store=store)
            )
            looking = (
                "  # for trimtab balance, evaluation and quarantine\n"
                f"  export TRIMTAB_NATS__SERVERS={nats.address.servers[0]}"
                f" TRIMTAB_NATS_ACCOUNTS__SEED_FILE={nats.operator_seed_file}\n"
            )
        click.echo(
            f"Kubernetes API at {plane.apiserver.url}, and a node that runs pods as processes. In another terminal:\n\n"
            f"  export KUBECONFIG={plane.kubeconfig()} PATH={plane.assets.kubectl.parent}:$PATH\n"
            "  kubectl apply -f job.yaml\n"
            "  kubectl get rlj,rp,pods\n"
            f"{looking}\n"
            f"The node's log is {cluster.node.log_file}. Ctrl-C stops everything and keeps the data."
        )
        stop.wait()
        click.echo("stopping")
