"""What a pod's containers find mounted: its volumes on this machine, and its own /etc/hosts where it asks for one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.devcluster.container.command import expanded
from trimtab.devcluster.container.sandbox import Mount
from trimtab.devcluster.pod.sources import PodSources
from trimtab.devcluster.pod.spec import PodFacts, containers
from trimtab.devcluster.volumes.projections import PROJECTED, files_of, sources_of, tokens_of, write_files
from trimtab.kube.resources import Object

_HOSTS = Path("/etc/hosts")


class VolumeRefused(Exception):
    """This node cannot give the pod what it asks for, now or later."""


@dataclass(frozen=True, kw_only=True)
class VolumeFolders:
    """Where a pod's volumes lie: on disk, and in memory for those that ask for it."""

    disk: Path
    memory: Path

    def of(self, volume: Mapping[str, Any]) -> Path:
        in_memory = (volume.get("emptyDir") or {}).get("medium") == "Memory"
        return (self.memory if in_memory else self.disk) / str(volume["name"])

    @property
    def shared_memory(self) -> Path:
        """The pod's /dev/shm, which its containers share."""
        return self.memory / "..shm"


def refusal_of(pod: Object, *, host_paths_allowed: bool, sandbox_problem: str) -> str | None:
    """Why the pod's volumes can never be had here; None if they can. Without a sandbox nothing can be mounted."""
    if sandbox_problem and any(container.get("volumeMounts") for _, container in containers(pod)):
        return f"pods with volumes cannot run on this node: {sandbox_problem}"
    for volume in pod["spec"].get("volumes") or ():
        kind = next((name for name in volume if name != "name"), "emptyDir")
        if kind == "hostPath" and not host_paths_allowed:
            return f"volume {volume['name']}: hostPath is not allowed; start the node with --allow-host-path"
        if kind not in (*PROJECTED, "emptyDir", "hostPath"):
            return f"volume {volume['name']}: {kind} is not supported on the development node; use emptyDir or hostPath"
    return None


async def prepare(pod: Object, *, folders: VolumeFolders, facts: PodFacts, sources: PodSources) -> None:
    """Make every volume, or bring its files up to date. SourceMissing and KubeError: not now, perhaps later."""
    folders.shared_memory.mkdir(parents=True, exist_ok=True)
    for volume in pod["spec"].get("volumes") or ():
        if "hostPath" in volume:
            _prepare_host_path(volume)
        elif any(kind in volume for kind in PROJECTED):
            content = await sources.read(sources_of(volume))
            tokens = await sources.tokens(tokens_of(volume))
            files = files_of(volume, facts=facts, sources=content, tokens=tokens)
            await asyncio.to_thread(write_files, folders.of(volume), files)
        else:
            folders.of(volume).mkdir(parents=True, exist_ok=True)


def mounts_of(
    container: Mapping[str, Any], pod: Object, *, folders: VolumeFolders, variables: Mapping[str, str]
) -> list[Mount]:
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    mounts = [Mount(source=folders.shared_memory, target=Path("/dev/shm"))]  # noqa: S108 - the pod's own
    for mount in container.get("volumeMounts") or ():
        volume = volumes[mount["name"]]
        source = Path(volume["hostPath"]["path"]) if "hostPath" in volume else folders.of(volume)
        below = mount.get("subPath") or expanded(mount.get("subPathExpr") or "", variables)
        if below:
            source = _below(source, below)
        read_only = bool(mount.get("readOnly")) or any(kind in volume for kind in PROJECTED)
        target = Path(mount["mountPath"])
        if target == mounts[0].target:
            mounts.pop(0)
        mounts.append(Mount(source=source, target=target, read_only=read_only))
    return mounts


def hosts_mounts(pod: Object, *, folder: Path) -> list[Mount]:
    """For names that this machine cannot look up, as it has no DNS of the cluster. Writes the file into the pod's
    folder; nothing for pods without aliases, which see the host's."""
    if not _aliases(pod):
        return []
    file = folder / "hosts"
    file.write_text(_hosts_text(pod, of_the_host=_HOSTS.read_text(encoding="utf-8") if _HOSTS.exists() else ""))
    return [Mount(source=file, target=_HOSTS, read_only=True)]


def _hosts_text(pod: Object, *, of_the_host: str) -> str:
    """The host's entries, then the pod's, a line for each address."""
    entries = [f"{alias['ip']}\t{' '.join(alias.get('hostnames') or ())}" for alias in _aliases(pod)]
    return "\n".join((of_the_host.rstrip("\n"), *entries, ""))


def _aliases(pod: Object) -> list[dict[str, list[str]]]:
    return list(pod["spec"].get("hostAliases") or ())


def _below(source: Path, below: str) -> Path:
    inside = Path(os.path.realpath(source / below))
    if not inside.is_relative_to(os.path.realpath(source)):
        raise VolumeRefused(f"subPath {below} leads out of its volume")
    if not inside.exists():
        inside.mkdir(parents=True)
    return inside


def _prepare_host_path(volume: Mapping[str, Any]) -> None:
    path, kind = Path(volume["hostPath"]["path"]), volume["hostPath"].get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    elif not path.exists():
        raise VolumeRefused(f"volume {volume['name']}: hostPath {path} does not exist")
