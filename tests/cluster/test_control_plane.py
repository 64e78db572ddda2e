"""The control plane itself: isolated, authenticated, with its state after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.control_planes import NewControlPlane
from trimtab.embedded.binaries import BinaryMissingError
from trimtab.embedded.kube.assets import ControlPlaneAssets, control_plane_assets
from trimtab.embedded.kube.control_plane import ControlPlane, KubectlError


@pytest.mark.slow
def test_two_control_planes_do_not_see_each_other(
    control_plane: ControlPlane, new_control_plane: NewControlPlane, namespace: str
) -> None:
    assert namespace in control_plane.kubectl("get", "namespaces", "-o", "name").stdout
    with new_control_plane() as remote:
        assert namespace not in remote.kubectl("get", "namespaces", "-o", "name").stdout
        with pytest.raises(KubectlError, match="certificate signed by unknown authority|Unauthorized|must be logged"):
            remote.kubectl("get", "namespaces", "--server", control_plane.apiserver.url)


def test_rbac_is_enforced(control_plane: ControlPlane, namespace: str) -> None:
    stranger = control_plane.kubeconfig(user="stranger", groups=())
    with pytest.raises(KubectlError, match="Forbidden"):
        control_plane.kubectl("get", "rljobs", "-n", namespace, kubeconfig=stranger)


@pytest.mark.slow
def test_objects_survive_a_crash_of_both_servers(assets: ControlPlaneAssets, tmp_path: Path) -> None:
    with ControlPlane(tmp_path, assets=assets, supervise=False) as plane:
        plane.kubectl("create", "namespace", "kept")
        plane.apiserver.kill()
        plane.etcd.kill()
    with ControlPlane(tmp_path, assets=assets) as plane:
        assert "kept" in plane.kubectl("get", "namespaces", "-o", "name").stdout


def test_kubebuilder_assets_are_honoured(
    tmp_path: Path, assets: ControlPlaneAssets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(BinaryMissingError, match="no etcd and no kube-apiserver"):
        control_plane_assets()
    for name, program in (("etcd", assets.etcd), ("kube-apiserver", assets.apiserver)):
        (tmp_path / name).symlink_to(program)
    found = control_plane_assets()
    assert (found.etcd, found.apiserver) == (tmp_path / "etcd", tmp_path / "kube-apiserver")
