"""The file system a container sees: the host's, with the pod's volumes at their mount paths and nothing left behind.

A folder on the way to a mount path is rebuilt as an empty one in memory that holds the host's entries one by one, so
that a mount point can be made in it without making it on the host: /etc/job then exists in the container only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Disks, consoles and the like: a container has no business with them, and each would be a mount of its own.
_HIDDEN_DEVICES = re.compile(
    r"(tty\w+|loop.*|ram\d+|vcs.*|[shv]d[a-z]+\d*|nvme.*|dm-\d+|sg\d+|nbd\d+|mem|kmem|port|kmsg)"
)


@dataclass(frozen=True, kw_only=True)
class Mount:
    source: Path
    target: Path
    read_only: bool = False


def view_arguments(mounts: Iterable[Mount], *, read_only_root: bool) -> list[str]:
    """Bubblewrap's arguments for the view."""
    resolved = sorted(
        (Mount(source=mount.source, target=_on_host(mount.target), read_only=mount.read_only) for mount in mounts),
        key=lambda mount: len(mount.target.parts),
    )
    targets = [mount.target for mount in resolved]
    rebuilt = _rebuilt_folders(targets)
    arguments: list[str] = []
    for folder in sorted(rebuilt, key=lambda folder: len(folder.parts)):
        if folder != Path("/"):
            arguments += ["--tmpfs", str(folder)]
        for entry in sorted(folder.iterdir()):
            if entry not in rebuilt and entry not in targets and entry != Path("/proc") and not _is_hidden(entry):
                arguments += _host_entry(entry, read_only=read_only_root)
    arguments += ["--proc", "/proc"]
    for mount in resolved:
        arguments += ["--ro-bind" if mount.read_only else "--bind", str(mount.source), str(mount.target)]
    if read_only_root:
        for folder in sorted(rebuilt, key=lambda folder: len(folder.parts)):
            if not folder.is_relative_to("/dev"):
                arguments += ["--remount-ro", str(folder)]
    return arguments


def _on_host(target: Path) -> Path:
    """Where a path leads when the host's links are followed: /var/run is /run on most."""
    return Path(os.path.realpath(target))


def _rebuilt_folders(targets: list[Path]) -> set[Path]:
    """The host's folders above the targets; what lies inside another target is that one's affair."""
    above = {
        parent
        for target in targets
        for parent in target.parents
        if not any(parent.is_relative_to(other) for other in targets) and parent.is_dir()
    }
    return above | {Path("/")}


def _host_entry(entry: Path, *, read_only: bool) -> Iterator[str]:
    if entry.is_symlink():
        return iter(("--symlink", str(entry.readlink()), str(entry)))
    # Not --ro-bind below /dev: that would forbid the use of devices, too.
    bind = "--ro-bind-try" if read_only and not entry.is_relative_to("/dev") else "--dev-bind-try"
    return iter((bind, str(entry), str(entry)))


def _is_hidden(entry: Path) -> bool:
    return entry.parent == Path("/dev") and _HIDDEN_DEVICES.fullmatch(entry.name) is not None
