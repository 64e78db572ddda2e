"""What an agent may read besides its own folder: what programs need, and nothing that was mounted into the pod."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
# One by one: a pod's /etc may have a Secret in it.
_SETTINGS = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "os-release", "localtime", "timezone"),
    *("passwd", "group", "nsswitch.conf", "hosts", "host.conf", "hostname", "resolv.conf", "gai.conf"),
    *("services", "protocols", "mime.types", "magic", "ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf"),
    *("ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted", "crypto-policies", "python3", "fonts"),
)
# Where /proc says something about another process that is not for everybody, Landlock has the last word.
_KERNEL = ("/proc", "/sys/devices/system/cpu", "/sys/devices/system/node")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Readable:
    whole: tuple[str, ...]
    """Files, and folders with all that is in them."""
    listed: tuple[str, ...]
    """Folders of which the names can be read, and some of what is in them."""


def readable(
    command: Sequence[str], *, source: Path | None, more: Iterable[str], executables: str, but: Iterable[str] = ()
) -> Readable:
    """For a command that is looked for in `executables`. `source` is the folder of the user's code, `more` what the
    job names by itself, a mounted folder too. What is beneath `but` stays hidden.
    """
    roots = [*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS), *_interpreters(command, executables)]
    hidden = volumes(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
    whole, listed = _without([*hidden, *but], [root for root in roots if root not in but])
    if source is not None:
        own, folders = _of_source(source)
        whole, listed = [*whole, *own], [*listed, *folders]
    named = [word for word in command[1:] if word.startswith("/")]
    return Readable(whole=(*whole, *_KERNEL, *named, *more), listed=tuple(listed))


def volumes(mountinfo: str) -> Sequence[str]:
    """Where something is mounted that may hold secrets. Files of a disk are the libraries of a driver."""
    found = []
    for line in mountinfo.splitlines():
        about, _, source = line.partition(" - ")
        path = about.split()[4].encode("latin-1", "surrogateescape").decode("unicode_escape")
        try:
            is_folder = stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116
        except OSError:
            is_folder = True
        if is_folder or source.split()[0] == "tmpfs":
            found.append(path)
    return found


def _interpreters(command: Sequence[str], executables: str) -> Iterable[str]:
    """The worker's Python, and the one that the command runs: with the folders of both that a virtual one leads to."""
    yield from (sys.prefix, sys.base_prefix)
    found = shutil.which(command[0], path=executables)
    if found is None:
        return
    yield found
    settings = Path(found).absolute().parent.parent / "pyvenv.cfg"
    if settings.is_file():
        yield str(settings.parent)
        for line in settings.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "home":
                yield str(Path(value.strip()).resolve().parent)


def _of_source(source: Path) -> tuple[list[str], list[str]]:
    """What begins with a dot stays hidden: the job's own state lies there where it runs on one machine."""
    return [str(entry) for entry in sorted(source.iterdir()) if not entry.name.startswith(".")], [str(source)]


def _without(hidden: Iterable[str], roots: Iterable[str]) -> tuple[list[str], list[str]]:
    """The roots, and in the place of one that has something hidden beneath it, what else is in it."""
    whole: list[str] = []
    listed: list[str] = []
    waiting = list(roots)
    inner = [Path(path) for path in hidden]
    while waiting:
        root = waiting.pop(0)
        place = Path(root).resolve()
        if not any(place in path.parents for path in inner):
            whole.append(root)
            continue
        listed.append(root)
        waiting += [str(entry) for entry in sorted(place.iterdir()) if entry not in inner]
    return whole, listed
