"""Where Kubernetes' own programs come from: KUBEBUILDER_ASSETS, as in envtest; our build cache; kubectl by pip.

`python -m trimtab.embedded.kube.assets` builds what is missing ahead of its use: the API server and etcd first, because
most need no more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trimtab.embedded.binaries import BinaryMissingError, find_binary
from trimtab.embedded.go_build import GoProgram, built, is_built

KUBERNETES_VERSION = "v1.36.3"
_PROGRAMS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")


def _kubernetes(name: str, *, takes: str) -> GoProgram:
    return GoProgram(
        name=name,
        version=KUBERNETES_VERSION,
        package=f"k8s.io/kubernetes/cmd/{name}",
        module=Path(__file__).parent / "kubernetes_module",
        takes=takes,
        siblings=tuple(other for other in _PROGRAMS if other != name),
        linker_flags=f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
    )


_APISERVER = _kubernetes("kube-apiserver", takes="6 to 9 minutes on two cores")
_SCHEDULER = _kubernetes("kube-scheduler", takes="1 minute of processor time after the API server")
_CONTROLLER_MANAGER = _kubernetes("kube-controller-manager", takes="1 minute of processor time after the API server")
# PyPI's etcd is 3.5.1, which does not answer the API server's requests for progress: its caches of what seldom changes
# fall behind, and what waits for them runs into time-outs.
_ETCD = GoProgram(
    name="etcd",
    version="v3.6.16",
    package="go.etcd.io/etcd/server/v3",
    module=Path(__file__).parent / "etcd_module",
    takes="3 minutes of processor time",
)


@dataclass(frozen=True, kw_only=True)
class ControlPlaneAssets:
    """What serves the API of one cluster, and the program that people talk to it with."""

    etcd: Path
    apiserver: Path
    kubectl: Path


@dataclass(frozen=True, kw_only=True)
class ControllerAssets:
    """What acts on the objects of a cluster that runs pods."""

    scheduler: Path
    controller_manager: Path


def control_plane_assets() -> ControlPlaneAssets:
    """Find the programs, building the servers once if need be (8 to 11 minutes on two cores, progress on stderr)."""
    folder = _given_folder()
    if folder is None:
        return ControlPlaneAssets(etcd=built(_ETCD), apiserver=built(_APISERVER), kubectl=find_binary("kubectl"))
    missing = [name for name in ("etcd", "kube-apiserver") if not (folder / name).is_file()]
    if missing:
        raise BinaryMissingError(
            f"KUBEBUILDER_ASSETS={folder} has no {' and no '.join(missing)}: put it there or unset the variable"
        )
    kubectl = folder / "kubectl"
    return ControlPlaneAssets(
        etcd=folder / "etcd",
        apiserver=folder / "kube-apiserver",
        kubectl=kubectl if kubectl.is_file() else find_binary("kubectl"),
    )


def controller_assets() -> ControllerAssets:
    """Find the programs, building them once if need be. The archives for envtest have neither of them."""
    return ControllerAssets(
        scheduler=_given(_SCHEDULER) or built(_SCHEDULER),
        controller_manager=_given(_CONTROLLER_MANAGER) or built(_CONTROLLER_MANAGER),
    )


def all_built() -> bool:
    """Whether `control_plane_assets` and `controller_assets` answer at once."""
    servers = () if _given_folder() else (_ETCD, _APISERVER)
    return all(map(is_built, servers)) and all(
        _given(program) or is_built(program) for program in (_SCHEDULER, _CONTROLLER_MANAGER)
    )


def _given_folder() -> Path | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(folder) if folder else None


def _given(program: GoProgram) -> Path | None:
    folder = _given_folder()
    return folder / program.name if folder is not None and (folder / program.name).is_file() else None


if __name__ == "__main__":
    control_plane_assets()
    controller_assets()
