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
from trimtab.rollout.engines.builtin.model import Batch, EngineModel, WeightMismatchError
from trimtab.rollout.engines.builtin.sampling import sample

PauseMode = Literal["abort", "retract", "in_place"]
_IDLE_WAIT_S = 0.5


class QueueFullError(RuntimeError):
    """More requests wait than the engine is willing to hold."""


class EngineDeadError(RuntimeError):
    """The model's thread has ended, by an error or because it was told to: nothing will be generated any more."""


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
        self._paused = False
        self._stopping = False
        # Guards what other threads change or must see together: how many requests are held, and why no more are taken.
        self._lock = threading.Lock()
        self._held = 0
        self._death: EngineDeadError | None = None
        self.ended: Future[None] = Future()
        """Set when the model's thread has ended, well or badly."""
        self.ended.set_running_or_notify_cancel()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    @property
    def death(self) -> EngineDeadError | None:
        """Why the model's thread has ended; None while it runs."""
        return self._death

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def running_requests(self) -> int:
        return len(self._running)

    @property
    def waiting_requests(self) -> int:
        return max(0, self._held - len(self._running))

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread; what it holds is answered as aborted. Stopping what has died already does nothing."""
        if self._death is None:
            self._command(self._stop)
        self._thread.join(timeout_s)

    def submit(self, generation: Generation) -> None:
        """Queue it; its `done` is set when it has ended. Raises QueueFullError or EngineDeadError."""
        # From here on nobody can cancel it, so that the model's thread never meets a future that is settled already.
        generation.done.set_running_or_notify_cancel()
        with self._lock:
            self._raise_if_dead()
            if self._held >= self._max_waiting:
                raise QueueFullError(f"{self._held} requests are held already, the limit is {self._max_waiting}")
            self._held += 1
            self._inbox.put(generation)

    def pause(self, mode: PauseMode) -> Future[None]:
        return self._command(lambda: self._pause(mode))

    def resume(self) -> Future[None]:
        return self._command(self._resume)

    def abort(self, request_id: str | None) -> Future[None]:
        """Abort the requests with this id, or all of them."""
        return self._command(lambda: self._abort(lambda g: request_id is None or g.request_id == request_id))

    def withdraw(self, generation: Generation) -> Future[None]:
        """Abort this one, whoever else uses its id: nobody waits for it any more."""
        return self._command(lambda: self._abort(lambda g: g is generation))

    def update_weights(self, folder: Path, *, weight_version: str | None) -> Future[None]:
        return self._command(lambda: self._update(folder, weight_version))

    def _command(self, action: Callable[[], None]) -> Future[None]:
        command = _Command(action=action, done=Future())
        command.done.set_running_or_notify_cancel()
        with self._lock:
            self._raise_if_dead()
            self._inbox.put(command)
        return command.done

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death))

    def _run(self) -> None:
        reason = "it was stopped"
        try:
            while not self._stopping:
                busy = not self._paused and (self._running or self._waiting)
                self._read_inbox(wait=not busy)
                if not self._paused and not self._stopping:
                    self._step()
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._die(reason)

    def _die(self, reason: str) -> None:
        """Nobody may be left waiting: not who is running or queued, and not who comes while we look."""
        with self._lock:
            self._death = EngineDeadError(f"the engine's model thread has ended: {reason}")
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                break
            if isinstance(item, Generation):
                self._waiting.append(item)
            else:
                item.done.set_exception(self._death)
        left = [*self._running, *self._waiting]
        self._running, self._waiting, self._batch, self._logits = [], deque(), None, None
        for generation in left:
            if self._stopping:
                generation.finish = "abort"
                self._answer(generation)
            else:
                self._release()
                generation.done.set_exception(self._death)
        self.ended.set_result(None)

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
        ended = [generation for generation in self._running if generation.finish is not None]
        if ended:
            self._running = [self._running[row] for row in rows]
            for generation in ended:
                self._answer(generation)
            if rows:
                self._model.keep(rows, self._batch)
        if self._running:
            self._logits = self._model.decode([tokens[row] for row in rows], self._batch)
        else:
            self._batch = self._logits = None

    def _answer(self, generation: Generation) -> None:
        generation.weight_version = self.weight_version
        self._release()
        generation.done.set_result(None)

    def _release(self) -> None:
        with self._lock:
            self._held -= 1

    def _pause(self, mode: PauseMode) -> None:
        self._paused = True
        if mode == "abort":
            self._abort(lambda _: True)
        elif mode == "retract":
            self._waiting.extendleft(reversed(self._running))
            self._running, self._batch, self._logits = [], None, None

    def _resume(self) -> None:
        self._paused = False

    def _abort(self, chosen: Callable[[Generation], bool]) -> None:
        ended = [generation for generation in (*self._running, *self._waiting) if chosen(generation)]
        for generation in ended:
            generation.finish = "abort"
        self._waiting = deque(g for g in self._waiting if g.finish is None)
        rows = [row for row, generation in enumerate(self._running) if generation.finish is None]
        if len(rows) < len(self._running):
            self._running = [self._running[row] for row in rows]
            if rows and self._batch is not None and self._logits is not None:
                self._model.keep(rows, self._batch)
                self._logits = self._logits[rows]
            else:
                self._batch = self._logits = None
        for generation in ended:
            self._answer(generation)

    def _update(self, folder: Path, weight_version: str | None) -> None:
        self._model.load(folder)
        if weight_version is not None:
            self.weight_version = weight_version

    def _stop(self) -> None:
        self._stopping = True


def _carry_out(command: _Command) -> None:
    """Weights that are refused change nothing. Any other error leaves the model in doubt, and ends the thread."""
    try:
        command.action()
    except (WeightMismatchError, OSError) as error:
        command.done.set_exception(error)
    except BaseException as error:
        command.done.set_exception(EngineDeadError(f"{type(error).__name__}: {error}"))
        raise
    else:
        command.done.set_result(None)
