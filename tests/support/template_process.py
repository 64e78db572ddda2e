"""A process that has imported and compiled everything a worker needs, and forks workers from itself in milliseconds.

It has one thread and opens nothing, so a fork of it is a clean process. Workers are real processes that die by SIGKILL.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

_logger = logging.getLogger(__name__)
_ANSWER_TIMEOUT_S = 300.0
_RUNS = -1


@dataclass(frozen=True)
class TemplateProcess:
    """The testing side."""

    requests: Connection

    def start(self, work: Callable[..., None], *arguments: Any) -> int:
        """The id of a new process that does the work, which must be importable by name."""
        self.requests.send((work, arguments))
        return self._answer()

    def kill(self, pid: int) -> None:
        """Returns when the process is gone. Fails when it had ended by itself."""
        ending = self.end(pid)
        assert os.WIFSIGNALED(ending), "a worker failed; its traceback is above"
        assert os.WTERMSIG(ending) == signal.SIGKILL

    def end(self, pid: int) -> int:
        """Kills the process if it still runs; what waitpid says of its end."""
        self.requests.send((_end, (pid,)))
        return self._answer()

    def ended(self, pid: int) -> int | None:
        """What waitpid says of a process that has ended by itself, once; None while it runs."""
        self.requests.send((_look, (pid,)))
        ending = self._answer()
        return None if ending == _RUNS else ending

    def _answer(self) -> int:
        assert self.requests.poll(_ANSWER_TIMEOUT_S), "the template process does not answer"
        answer = self.requests.recv()
        assert isinstance(answer, int)
        return answer


@contextmanager
def template_process(prepare: Callable[[], None]) -> Iterator[TemplateProcess]:
    """`prepare` runs once, in the template. Workers that are left at the end are killed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, prepare), daemon=True)
    process.start()
    theirs.close()
    template = TemplateProcess(ours)
    try:
        assert template._answer() == process.pid
        yield template
    finally:
        ours.close()
        process.join(_ANSWER_TIMEOUT_S)
        process.kill()


def _serve(requests: Connection, prepare: Callable[[], None]) -> None:
    prepare()
    requests.send(os.getpid())
    alive: set[int] = set()
    try:
        while True:
            work, arguments = requests.recv()
            if work in (_end, _look):
                (pid,) = arguments
                ending = work(pid)
                if ending != _RUNS:
                    alive.discard(pid)
                requests.send(ending)
            else:
                pid = os.fork()
                if pid == 0:
                    _work(requests, work, arguments)
                alive.add(pid)
                requests.send(pid)
    except EOFError:
        for pid in alive:
            _end(pid)


def _end(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _look(pid: int) -> int:
    found, ending = os.waitpid(pid, os.WNOHANG)
    return ending if found else _RUNS


def _work(requests: Connection, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    status = 1
    try:
        requests.close()
        work(*arguments)
        status = 0
    except Exception:
        _logger.exception("a worker failed")
    finally:
        os._exit(status)  # a fork must never get back into the loop above, whatever it ends with
