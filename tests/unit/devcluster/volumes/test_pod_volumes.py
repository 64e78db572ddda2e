from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.devcluster.pods import a_pod
from trimtab.devcluster.container.sandbox import Mount
from trimtab.devcluster.volumes.pod_volumes import VolumeFolders, VolumeRefused, mounts_of, refusal_of

MOUNTED = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}


@pytest.mark.parametrize(
    ("volume", "allowed", "problem", "refusal"),
    [
        ({"emptyDir": {}}, False, "", None),
        ({}, False, "", None),
        ({"projected": {"sources": []}}, False, "", None),
        ({"hostPath": {"path": "/"}}, True, "", None),
        ({"hostPath": {"path": "/"}}, False, "", "--allow-host-path"),
        ({"nfs": {}}, True, "", "nfs is not supported"),
        ({"emptyDir": {}}, False, "no namespaces", "cannot run on this node: no namespaces"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    volume: dict[str, Any], allowed: bool, problem: str, refusal: str | None
) -> None:
    pod = a_pod(MOUNTED, volumes=[{"name": "v", **volume}])
    found = refusal_of(pod, host_paths_allowed=allowed, sandbox_problem=problem)
    assert found is None if refusal is None else refusal in str(found)


def test_without_volumes_no_sandbox_is_needed() -> None:
    assert refusal_of(a_pod(), host_paths_allowed=False, sandbox_problem="no namespaces") is None


def test_mounts(tmp_path: Path) -> None:
    folders = VolumeFolders(disk=tmp_path / "disk", memory=tmp_path / "memory")
    volumes = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "job", "configMap": {"name": "job"}},
        {"name": "host", "hostPath": {"path": "/srv"}},
    ]
    container = {
        "name": "main",
        "volumeMounts": [
            {"name": "scratch", "mountPath": "/scratch", "subPathExpr": "$(RANK)"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "job", "mountPath": "/job"},
            {"name": "host", "mountPath": "/srv", "readOnly": True},
        ],
    }
    found = mounts_of(container, a_pod(container, volumes=volumes), folders=folders, variables={"RANK": "3"})
    assert found == [
        Mount(source=tmp_path / "disk" / "scratch" / "3", target=Path("/scratch")),
        Mount(source=tmp_path / "memory" / "shm", target=Path("/dev/shm")),
        Mount(source=tmp_path / "disk" / "job", target=Path("/job"), read_only=True),
        Mount(source=Path("/srv"), target=Path("/srv"), read_only=True),
    ]


def test_every_pod_has_shared_memory_of_its_own(tmp_path: Path) -> None:
    folders = VolumeFolders(disk=tmp_path / "disk", memory=tmp_path / "memory")
    (mount,) = mounts_of({"name": "main"}, a_pod(), folders=folders, variables={})
    assert (mount.source, mount.target) == (folders.shared_memory, Path("/dev/shm"))


def test_no_sub_path_leads_out_of_its_volume(tmp_path: Path) -> None:
    folders = VolumeFolders(disk=tmp_path / "disk", memory=tmp_path / "memory")
    (tmp_path / "disk" / "v").mkdir(parents=True)
    (tmp_path / "disk" / "v" / "link").symlink_to("/etc")
    container = {"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "link"}]}
    with pytest.raises(VolumeRefused, match="leads out"):
        mounts_of(container, a_pod(container, volumes=[{"name": "v"}]), folders=folders, variables={})
