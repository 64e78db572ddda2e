"""The outside of the walls: the process that forks jails, and what is known of each of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO

from trimtab.rollout.sandbox import frames, programs
from trimtab.rollout.sandbox.contract import Ended, Program, SandboxFailed

_START_TIMEOUT_S = 30.0
_END_S = 5.0
_ASKED_AT_ONCE = 16
"""More would fill the socket, and the zygote makes one after the other anyway."""
_SHOWN = 500


class JailLate(SandboxFailed):
    """The machine has no time for it just now."""


class Jail:
    """Takes one program. Closing it ends the program, with all that it started: by the kernel where the jail is the
    first of its namespace, else by itself.
    """

    def __init__(self, connection: socket.socket, process: int, *, namespaces: bool) -> None:
        self._connection = connection
        self._process = process
        self._namespaces = namespaces
        self._closed = False

    @property
    def alive(self) -> bool:
        return not select.select([self._process], [], [], 0)[0]

    async def run(self, program: Program) -> Ended:
        # The stream has the connection from here on, and closes it.
        reader, writer = await asyncio.open_connection(sock=self._connection.dup())
        most = program.limits.output_bytes + program.limits.disk_bytes
        try:
            writer.write(programs.request(program))
            with contextlib.suppress(ConnectionError):  # it may have said why before it went
                await writer.drain()
            report, blobs = await frames.read(reader, most_header=frames.MAX_REPORT_HEADER_BYTES, most=most)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise SandboxFailed("the jail of a program was lost: something outside killed it") from None
        except frames.FrameUnreadable as error:
            raise SandboxFailed(f"a jail told what cannot be: {error}") from None
        finally:
            writer.close()
        return programs.ended(program, report, blobs)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._connection.close()
        if self._namespaces or not self.alive:
            self._kill()
        else:
            asyncio.get_running_loop().call_later(_END_S, self._kill)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        os.close(self._process)


class Zygote:
    """The process of which jails are forked. `command` is how it is started, with the descriptor of its socket."""

    def __init__(self, command: Callable[[int], Sequence[str]], *, namespaces: bool) -> None:
        self._command = command
        self._namespaces = namespaces
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._errors: IO[bytes] | None = None
        self._turns = asyncio.Semaphore(_ASKED_AT_ONCE)
        self._asked: deque[tuple[socket.socket, asyncio.Future[Jail]]] = deque()

    @property
    def alive(self) -> bool:
        return self._control is not None

    def start(self) -> None:
        """Raises SandboxFailed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the zygote
        try:
            # By this thread, which lives as long as the event loop: bubblewrap ends with the thread that started it.
            self._process = subprocess.Popen(
                self._command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env={},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise SandboxFailed(f"the sandbox cannot be started: {error}") from None
        finally:
            theirs.close()
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._hear)

    async def jail(self) -> Jail:
        """A new one. Raises SandboxFailed."""
        async with self._turns:
            return await self._asked_for()

    async def _asked_for(self) -> Jail:
        if self._control is None:
            raise SandboxFailed("the sandbox is not running")
        ours, theirs = socket.socketpair()
        answered: asyncio.Future[Jail] = asyncio.get_running_loop().create_future()
        with theirs:
            try:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            except OSError:
                ours.close()
                raise SandboxFailed(self._why()) from None
        ours.setblocking(False)
        self._asked.append((ours, answered))
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                return await answered
        except TimeoutError:
            raise JailLate(f"no jail was made within {_START_TIMEOUT_S:g} s") from None

    async def close(self) -> None:
        self._end()
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _hear(self) -> None:
        assert self._control is not None
        try:
            told, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except BlockingIOError:
            return
        except ConnectionError:
            told, descriptors = b"", []
        if not told:
            self._end()
            return
        connection, answered = self._asked.popleft()
        if not descriptors:
            connection.close()
            if not answered.done():
                answered.set_exception(SandboxFailed("a jail was lost before it had a program"))
            return
        jail = Jail(connection, descriptors[0], namespaces=self._namespaces)
        if answered.done():
            jail.close()  # nobody waits for it any more
        else:
            answered.set_result(jail)

    def _end(self) -> None:
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        while self._asked:
            connection, answered = self._asked.popleft()
            connection.close()
            if not answered.done():
                answered.set_exception(SandboxFailed(self._why()))

    def _why(self) -> str:
        if self._errors is None:
            return "the sandbox has ended"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _SHOWN))
        told = self._errors.read(_SHOWN).decode(errors="replace").strip()
        return f"the sandbox has ended: {told or 'something killed it'}"
