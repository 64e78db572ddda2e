"""A process of its own for each side of the benchmark, which answers one question after the other over a pipe."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from benchmarks.report import logs_to_stderr
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.settings import NatsSettings

Question = TypeVar("Question")
Answer = TypeVar("Answer")
_END_S = 5.0


class ProcessEnded(RuntimeError):
    """The process died or hangs; what it said of it is on standard error."""


class Spawned(Generic[Question, Answer]):
    """The asking side. `tell` and `heard` are apart, so that two processes can work at once."""

    def __init__(self, name: str, pipe: Connection, pid: int) -> None:
        self.pid = pid
        self._name = name
        self._pipe = pipe

    def tell(self, question: Question) -> None:
        self._pipe.send(question)

    def heard(self, *, deadline_s: float) -> Answer:
        if not self._pipe.poll(deadline_s):
            raise ProcessEnded(f"the process of the {self._name} gave no answer within {deadline_s:.0f} s")
        try:
            answer: Answer = self._pipe.recv()
        except EOFError:
            raise ProcessEnded(f"the process of the {self._name} ended: see its traceback above") from None
        return answer

    def ask(self, question: Question, *, deadline_s: float) -> Answer:
        self.tell(question)
        return self.heard(deadline_s=deadline_s)


@contextmanager
def spawned(
    name: str, serve: Callable[[list[Bus], Question], Awaitable[Answer]], settings: NatsSettings, *, connections: int
) -> Iterator[Spawned[Question, Answer]]:
    """A process that answers with `serve`, which gets the connections that it keeps open."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(name, serve, settings, connections, theirs), daemon=True)
    process.start()
    theirs.close()  # or its end would never be noticed here
    try:
        assert process.pid is not None
        yield Spawned(name, ours, process.pid)
    finally:
        process.terminate()
        process.join(_END_S)


def _main(
    name: str,
    serve: Callable[[list[Bus], Any], Awaitable[Any]],
    settings: NatsSettings,
    connections: int,
    pipe: Connection,
) -> None:
    logs_to_stderr()
    asyncio.run(_answer_all(name, serve, settings, connections, pipe))


async def _answer_all(
    name: str,
    serve: Callable[[list[Bus], Any], Awaitable[Any]],
    settings: NatsSettings,
    connections: int,
    pipe: Connection,
) -> None:
    buses = [await Bus.connect(settings, name=f"{name}-{number}") for number in range(connections)]
    while True:
        question = await asyncio.to_thread(pipe.recv)
        pipe.send(await serve(buses, question))
