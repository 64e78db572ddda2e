"""Notices when something blocks the event loop. A `time.sleep` in a workflow stops every other episode of the worker,
its heartbeats and the leases of its tasks, and nothing that runs on the loop itself could report it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from traceback import FrameSummary
from types import TracebackType
from typing import Self

import structlog

_log = structlog.get_logger(__name__)
_BEAT_S = 0.25
_FRAMES = 6


class LoopWatchdog(AbstractContextManager["LoopWatchdog"]):
    """A thread beside the event loop of the task that enters it. `blocked` is called with the length of each block,
    once it is over. `hung` is called, in that thread, with the calls that make up a block which has lasted
    `hung_after_s`: it may never be over.
    """

    def __init__(
        self,
        *,
        limit_s: float,
        blocked: Callable[[float], None],
        hung_after_s: float,
        hung: Callable[[Sequence[FrameSummary]], None],
        clock: Callable[[], float],
    ) -> None:
        self._limit_s = limit_s
        self._blocked = blocked
        self._hung_after_s = hung_after_s
        self._hung = hung
        self._clock = clock
        self._last_beat = clock()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._last_beat = self._clock()
        self._beating = self._loop.create_task(self._beat(), name="loop watch")
        threading.Thread(target=self._look, name="loop watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._beating.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            silence_s = self._clock() - self._last_beat
            self._last_beat = self._clock()
            if silence_s > self._limit_s:
                self._blocked(silence_s)
                _log.warning("event_loop_free_again", seconds=round(silence_s, 1))

    def _look(self) -> None:
        said_at: float | None = None
        looks, seen = 0, self._last_beat
        while not self._over.wait(_BEAT_S):
            last = self._last_beat
            if self._clock() - last > self._limit_s and said_at != last:
                said_at = last
                where = [f"{call.filename}:{call.lineno} {call.name}" for call in self._calls()[-_FRAMES:]]
                _log.error("event_loop_blocked", task=self._task_name(), where=where)
            # By looks, not by the clock: a process that was stopped and goes on has slept, and hangs nowhere.
            looks, seen = looks + 1 if last == seen else 0, last
            if looks * _BEAT_S > self._hung_after_s:
                self._hung(self._calls())
                return

    def _task_name(self) -> str | None:
        task = asyncio.current_task(self._loop)
        return None if task is None else task.get_name()

    def _calls(self) -> Sequence[FrameSummary]:
        """Those that the loop is in, the innermost last."""
        return traceback.extract_stack(sys._current_frames().get(self._loop_thread))
