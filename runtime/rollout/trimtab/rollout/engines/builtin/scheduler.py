"""Decides what the model computes next. One thread owns the model; everyone else talks to it through a queue.

Requests are taken in cohorts: what waits when the model is free is decoded together until its last member ends. Between
two tokens the thread looks for commands, so a pause or a weight update takes effect at a token boundary.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from trimtab.rollout.engines.builtin.generation import Generation
from trimtab.rollout.engines.builtin.model import Batch, EngineModel
from trimtab.rollout.engines.builtin.sampling import sample

PauseMode = Literal["abort", "retract", "in_place"]
_IDLE_WAIT_S = 0.5


class QueueFullError(RuntimeError):
    """More requests wait than the engine is willing to hold."""


@dataclass(frozen=True, kw_only=True)
class _Command:
    """Something to do on the model's thread between two tokens."""

    action: Callable[[], None]
    done: Future[None]


class Scheduler:
    """Runs the model's thread from `start` to `stop`."""

    def __init__(self, model: EngineModel, *, weight_version: str, max_batch: int, max_waiting: int) -> None:
        self.weight_version = weight_version
        self.generated_tokens = 0
        self._model = model
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._inbox: queue.SimpleQueue[Generation | _Command] = queue.SimpleQueue()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._batch: Batch | None = None
        self._logits: torch.Tensor | None = None
        self._futures: dict[str, Future[Generation]] = {}
        self._paused = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def running_requests(self) -> int:
        return len(self._running)

    @property
    def waiting_requests(self) -> int:
        return len(self._futures) - len(self._running)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        self._command(self._stop)
        self._thread.join(timeout_s)

    def submit(self, generation: Generation) -> Future[Generation]:
        if len(self._futures) >= self._max_waiting:
            raise QueueFullError(f"{len(self._futures)} requests wait already, the limit is {self._max_waiting}")
        future: Future[Generation] = Future()
        self._futures[generation.request_id] = future
        self._inbox.put(generation)
        return future

    def pause(self, mode: PauseMode) -> Future[None]:
        return self._command(lambda: self._pause(mode))

    def resume(self) -> Future[None]:
        return self._command(self._resume)

    def abort(self, request_id: str | None) -> Future[None]:
        """Abort one request, or all of them."""
        return self._command(lambda: self._abort(request_id))

    def update_weights(self, folder: Path, *, weight_version: str | None) -> Future[None]:
        return self._command(lambda: self._update(folder, weight_version))

    def _command(self, action: Callable[[], None]) -> Future[None]:
        command = _Command(action=action, done=Future())
        self._inbox.put(command)
        return command.done

    def _run(self) -> None:
        while not self._stopping:
            busy = not self._paused and (self._running or self._waiting)
            self._read_inbox(wait=not busy)
            if not self._paused:
                self._step()
        self._abort(None)

    def _read_inbox(self, *, wait: bool) -> None:
        while True:
            try:
                item = self._inbox.get(timeout=_IDLE_WAIT_S) if wait else self._inbox.get_nowait()
            except queue.Empty:
                return
            wait = False
            if isinstance(item, Generation):
                self._waiting.append(item)
            else:
                _carry_out(item)

    def _step(self) -> None:
        if not self._running:
            if not self._waiting:
                return
            self._running = [self._waiting.popleft() for _ in range(min(self._max_batch, len(self._waiting)))]
            self._logits, self._batch = self._model.prefill([g.input_ids + g.output_ids for g in self._running])
        assert self._batch is not None
        assert self._logits is not None
        tokens, logprobs = sample(
            self._logits, [g.params for g in self._running], [g.random.random() for g in self._running]
        )
        for generation, token, logprob in zip(self._running, tokens, logprobs, strict=True):
            generation.append(token, logprob, eos_ids=self._model.eos_ids)
        self.generated_tokens += len(tokens)
        self._retire_finished(tokens)

    def _retire_finished(self, tokens: list[int]) -> None:
        assert self._batch is not None
        rows = [row for row, generation in enumerate(self._running) if generation.finish is None]
        for generation in self._running:
            if generation.finish is not None:
                self._answer(generation)
        if len(rows) < len(self._running):
            self._running = [self._running[row] for row in rows]
            if rows:
                self._model.keep(rows, self._batch)
        if self._running:
            self._logits = self._model.decode([tokens[row] for row in rows], self._batch)
        else:
            self._batch = self._logits = None

    def _answer(self, generation: Generation) -> None:
        future = self._futures.pop(generation.request_id, None)
        if future is not None and not future.cancelled():
            future.set_result(generation)

    def _pause(self, mode: PauseMode) -> None:
        self._paused = True
        if mode == "abort":
            self._abort(None)
        elif mode == "retract":
            self._waiting.extendleft(reversed(self._running))
            self._running, self._batch, self._logits = [], None, None

    def _resume(self) -> None:
        self._paused = False

    def _abort(self, request_id: str | None) -> None:
        chosen = [g for g in (*self._running, *self._waiting) if request_id in (None, g.request_id)]
        for generation in chosen:
            generation.finish = "abort"
            self._answer(generation)
        self._waiting = deque(g for g in self._waiting if g.finish is None)
        rows = [row for row, generation in enumerate(self._running) if generation.finish is None]
        if len(rows) < len(self._running):
            self._running = [self._running[row] for row in rows]
            if rows and self._batch is not None and self._logits is not None:
                self._model.keep(rows, self._batch)
                self._logits = self._logits[rows]
            else:
                self._batch = self._logits = None

    def _update(self, folder: Path, weight_version: str | None) -> None:
        self._model.load(folder)
        if weight_version is not None:
            self.weight_version = weight_version

    def _stop(self) -> None:
        self._stopping = True


def _carry_out(command: _Command) -> None:
    try:
        command.action()
    except (ValueError, OSError, RuntimeError) as error:
        command.done.set_exception(error)
    else:
        command.done.set_result(None)
