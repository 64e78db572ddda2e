"""Nothing outlives a run of the tests: no process, no mount, no folder, however it ends.

Three processes stand in a row, each the parent of the next: the one that was called, a guard, and the one that runs the
tests. Of the first two, each adopts whatever loses its parent below it (Linux calls that a subreaper). So whichever of
the three is killed, another is left that finds all that was started, ends it, and removes the folder of the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from trimtab.devcluster.volumes.shared_memory import sweep_shared_memory
from trimtab.embedded.dead_sockets import remove_dead_sockets
from trimtab.fabric.parent_death import die_with

FOLDER = "TESTS_FOLDER"
"""Where a run keeps everything that it writes: its own temporary folder, and that of all that it starts."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_WATCHED = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_MEMORY = Path("/dev/shm")
_LOOK_S = 0.01
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def memory_folder() -> tempfile.TemporaryDirectory[str]:
    """In memory, gone with the run."""
    return tempfile.TemporaryDirectory(dir=_MEMORY, prefix=f"{Path(os.environ[FOLDER]).name}-")


def let_in(folder: Path) -> None:
    """Everybody, on the way to this folder of the run: it is the owner's alone otherwise."""
    run = Path(os.environ[FOLDER])
    for reached in (folder, *folder.parents):
        if reached.is_relative_to(run):
            reached.chmod(0o755)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Goes on as the last in the row. The others return what it ends with."""
    if hasattr(config, "workerinput"):
        return None
    # Beside that of a run around this one, not in it: paths of sockets must stay short.
    beside = Path(os.environ[FOLDER]).parent if FOLDER in os.environ else None
    folder = tempfile.mkdtemp(prefix="trimtab-tests-", dir=beside)
    os.environ[FOLDER] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.option.basetemp = config.option.basetemp or str(Path(folder) / "t")
    # Whoever starts a run in the background may have it ignore Ctrl-C, and all that it starts with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    caller = os.getpid()
    _adopt()
    if guard := os.fork():
        return _watch(guard, parent=os.getppid())
    _adopt()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != caller:
        os._exit(1)
    if tests := os.fork():
        os._exit(_watch(tests, parent=caller))
    die_with(os.getppid())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    return None


def _adopt() -> None:
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError(ctypes.get_errno(), "the kernel lets no process adopt orphans")


def _watch(child: int, *, parent: int) -> int:
    """Wait for the child, hand on what people send, and clear up behind it; at once when the parent has died."""
    code = None
    while code is None:
        told = signal.sigwaitinfo(_WATCHED)
        if told.si_signo == signal.SIGCHLD:
            code = _exit_code(child)
        elif told.si_signo == signal.SIGTERM and os.getppid() != parent:
            code = 128 + signal.SIGTERM
        # A terminal sends Ctrl-C to all three; a person's `kill -INT` reaches one.
        elif told.si_pid != 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, told.si_signo)
    ended = end_descendants()
    remove_folder(Path(os.environ[FOLDER]), failed=code == pytest.ExitCode.TESTS_FAILED)
    if ended and code != 0:
        sys.stderr.write(f"the tests ended with {code}; processes that they left and that were ended: {ended}\n")
    return code


def _exit_code(child: int) -> int | None:
    """Of the child, once it has ended. Orphans that have ended are let go."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1
        if pid == 0:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def end_descendants() -> int:
    """Kill all that descends from this process, until there is nothing left; how many there were."""
    ended: set[int] = set()
    while found := psutil.Process().children(recursive=True):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        ended |= {process.pid for process in found}
        # Not until all are gone: one may be adopted only now, and was not killed yet.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_LOOK_S)
    return len(ended)


def remove_folder(folder: Path, *, failed: bool) -> None:
    """With what is mounted below it, and what it has in memory. Failed tests' files are kept, of the last such run."""
    for mount in reversed(_mounts_below(folder)):
        subprocess.run(["umount", "--lazy", mount])
    for leftover in _MEMORY.glob(f"{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if failed:
        if not folder.exists():
            return  # another of the row was here before
        kept = folder.with_name("trimtab-tests-failed")
        shutil.rmtree(kept, ignore_errors=True)
        try:
            folder.rename(kept)
        except OSError:  # another run has just put its own there
            shutil.rmtree(folder, ignore_errors=True)
        sys.stderr.write(f"files of the tests that failed: {kept}\n")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    sweep_shared_memory()
    remove_dead_sockets()


def _mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [target for line in lines if (target := line.split()[4]).startswith(f"{folder}/")]
