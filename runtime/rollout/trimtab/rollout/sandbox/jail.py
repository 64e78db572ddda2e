"""Runs one program and tells how it ended. It is thrown away then, with all that the program left.

It is executed inside the walls, with the standard library alone, as a process that zygote.py forked. The program is
started by the guard of agents: by Landlock it reads what programs need and writes in its folders alone, by seccomp it
has no sockets and asks for every process that it starts.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.rollout.agents import guard, seccomp
from trimtab.rollout.sandbox import folders, frames
from trimtab.rollout.sandbox.processes import Look, Processes

_LOOK_S = 0.1
_READ_BYTES = 1 << 16
_OPEN_FILES = 1024
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""What a shell says in that case."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all jails have in common."""

    most_bytes: int
    """Of a program with its files."""
    path: str
    """Where its commands are looked for."""
    read: Sequence[str]
    listed: Sequence[str]
    """Folders of which it may read the names."""


def serve(connection: socket.socket, place: folders.Place, around: Surroundings) -> None:
    """One program that comes over the connection, and then nothing more."""
    request = frames.receive(connection, most=around.most_bytes)
    if request is None:
        return
    about, blobs = request
    try:
        place.prepare(disk_bytes=about["disk_bytes"])
        place.write(dict(zip(about["files"], blobs[1:], strict=True)))
        report, output = _Run(connection, place, around, about).to_its_end(blobs[0])
    except folders.Full:
        report, output = {"failed": f"its files take more than the {about['disk_bytes']} bytes of its disk"}, []
    except (OSError, guard.Uncontained, seccomp.Unfiltered) as error:
        report, output = {"failed": str(error)}, []
    finally:
        place.remove()
    with contextlib.suppress(OSError):  # nobody waits for it any more
        connection.sendall(frames.packed(report, output))


class _Run:
    def __init__(
        self,
        connection: socket.socket,
        place: folders.Place,
        around: Surroundings,
        about: Mapping[str, Any],
    ) -> None:
        self._connection = connection
        self._place = place
        self._around = around
        self._about = about
        self._processes = Processes()
        self._output: dict[int, bytearray] = {}
        self._room: int = about["output_bytes"]
        self._peak = 0

    def to_its_end(self, given: bytes) -> tuple[dict[str, Any], list[bytes]]:
        told, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        began = time.monotonic()
        pipes = [os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)]
        for reads, _ in pipes:
            os.set_blocking(reads, False)
            self._output[reads] = bytearray()
        reads_from = self._place.given(given)
        try:
            program, permits = self._start(reads_from, *(writes for _, writes in pipes))
        except OSError as error:
            return self._unstarted(error)
        for _, writes in pipes:
            os.close(writes)
        end, code = self._watch(program.pid, permits, told=told, until=began + self._about["wall_s"])
        permits.close()
        guard.end_all()
        wall_s = time.monotonic() - began
        over = self._drain()
        if over and end == "exited":
            end, code = "output", -signal.SIGKILL
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = used.ru_utime + used.ru_stime
        if end == "exited" and code in (-signal.SIGKILL, -signal.SIGXCPU) and cpu_s >= self._about["cpu_s"]:
            end = "time"
        if end == "exited" and self._place.used_bytes() > self._about["disk_bytes"]:
            code = -signal.SIGXFSZ
        found = self._place.collect(self._about["collect"], most=self._about["disk_bytes"])
        report = {
            "end": end,
            "code": code,
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "peak_memory_bytes": max(self._peak, used.ru_maxrss << 10),
            "collected": [place for place, _ in found],
        }
        return report, [*(bytes(output) for output in self._output.values()), *(content for _, content in found)]

    def _start(self, given: int, stdout: int, stderr: int) -> tuple[subprocess.Popen[bytes], Any]:
        about = self._about
        disk, memory = about["disk_bytes"], about["memory_bytes"]
        reach = {
            "ports": (),
            "listed": self._around.listed,
            "read": self._around.read,
            "devices": _DEVICES,
            "write": self._place.writable,
        }
        return guard.start(
            about["command"],
            reach,
            steps=seccomp.sealed(machine=platform.machine()),
            resources=(
                (resource.RLIMIT_DATA, memory),
                (resource.RLIMIT_CPU, int(about["cpu_s"]) + 2),
                (resource.RLIMIT_FSIZE, disk),
                (resource.RLIMIT_NOFILE, _OPEN_FILES),
                (resource.RLIMIT_CORE, 0),
                (resource.RLIMIT_MEMLOCK, 0),
                (resource.RLIMIT_MSGQUEUE, 0),
                (resource.RLIMIT_SIGPENDING, 256),
            ),
            processes=about["processes"],
            count=self._processes.tasks,
            stdin=given,
            stdout=stdout,
            stderr=stderr,
            cwd=self._place.folder,
            env=self._place.environment(self._around.path),
        )

    def _unstarted(self, error: OSError) -> tuple[dict[str, Any], list[bytes]]:
        """By the program's own fault: there is no such command."""
        code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        why = f"{self._about['command'][0]}: {error.strerror}\n".encode(errors="surrogateescape")
        usage = {"wall_s": 0.0, "cpu_s": 0.0, "peak_memory_bytes": 0, "collected": []}
        return {"end": "exited", "code": code, **usage}, [b"", why[: self._room]]

    def _watch(self, program: int, permits: Any, *, told: int, until: float) -> tuple[str, int]:
        looks_at = time.monotonic() + _LOOK_S
        reading = set(self._output)
        waited = [self._connection, told, permits]
        while True:
            left = min(looks_at, until) - time.monotonic()
            ready, _, _ = select.select([*waited, *reading], [], [], max(0.0, left))
            if told in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(told, 4096)
            code = guard.exit_code(program)
            if code is not None:
                return "exited", code
            if self._connection in ready:
                return "abandoned", -signal.SIGKILL
            if permits in ready:
                permits.answer()
            for pipe in reading.intersection(ready):
                if not self._take(pipe):
                    reading.discard(pipe)
            if self._room < 0:
                return "output", -signal.SIGKILL
            now = time.monotonic()
            if now >= until:
                return "time", -signal.SIGKILL
            if now >= looks_at:
                over = self._over(self._processes.look(most=self._about["memory_bytes"]))
                if over is not None:
                    return over
                looks_at = time.monotonic() + _LOOK_S

    def _over(self, look: Look) -> tuple[str, int] | None:
        about = self._about
        self._peak = max(self._peak, look.memory_bytes)
        if look.memory_bytes > about["memory_bytes"]:
            return "memory", -signal.SIGKILL
        if look.cpu_s > about["cpu_s"]:
            return "time", -signal.SIGKILL
        return ("exited", -signal.SIGXFSZ) if self._place.used_bytes() > about["disk_bytes"] else None

    def _take(self, pipe: int) -> bool:
        """Whether there may be more."""
        try:
            part = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return True
        self._output[pipe] += part[: max(0, self._room)]
        self._room -= len(part)
        return bool(part)

    def _drain(self) -> bool:
        """What is left in the pipes, now that nobody writes. Whether it was more than the program may write."""
        for pipe in self._output:
            while self._room >= 0 and self._take(pipe):
                pass
        return self._room < 0
