"""Where etcd, kube-apiserver and kubectl come from: KUBEBUILDER_ASSETS, as in envtest; our build cache; pip.

`python -m trimtab.embedded.kube.assets` builds what is missing ahead of its use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trimtab.embedded.binaries import BinaryMissingError, find_binary
from trimtab.embedded.go_build import GoProgram, built, is_built

KUBERNETES_VERSION = "v1.36.3"
_APISERVER = GoProgram(
    name="kube-apiserver",
    version=KUBERNETES_VERSION,
    package="k8s.io/kubernetes/cmd/kube-apiserver",
    module=Path(__file__).parent / "apiserver_module",
    takes="6 to 9 minutes on two cores",
    linker_flags=f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
)
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
    """Programs of one control plane."""

    etcd: Path
    apiserver: Path
    kubectl: Path


def control_plane_assets() -> ControlPlaneAssets:
    """Find the programs, building the servers once if need be (8 to 11 minutes on two cores, progress on stderr)."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if folder:
        return _from_folder(Path(folder))
    return ControlPlaneAssets(
        etcd=built(_ETCD),
        apiserver=built(_APISERVER),
        kubectl=find_binary("kubectl"),
    )


def control_plane_built() -> bool:
    """Whether `control_plane_assets` answers at once."""
    return bool(os.environ.get("KUBEBUILDER_ASSETS")) or all(map(is_built, (_ETCD, _APISERVER)))


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


if __name__ == "__main__":
    control_plane_assets()
