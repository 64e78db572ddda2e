"""The thread that owns the model. Everyone else talks to it through a queue.

Between two steps it looks for commands, so a pause or a weight update takes effect at every request's token boundary.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from trimtab.rollout.engines.builtin.batch import BatchLimits, ContinuousBatch
from trimtab.rollout.engines.builtin.generation import Generation
from trimtab.rollout.engines.builtin.model import EngineModel, Staged
from trimtab.rollout.engines.builtin.scoring import Scoring, ScoringBatch
from trimtab.rollout.engines.builtin.sparse_update import PlacedUpdate, WeightMismatchError

PauseMode = Literal["abort", "retract", "in_place"]
_IDLE_WAIT_S = 0.5


class QueueFullError(RuntimeError):
    """More requests wait than the engine is willing to hold."""


class EngineBusyError(RuntimeError):
    """It cannot be done while requests are held."""


class EngineDeadError(RuntimeError):
    """The model's thread has ended, by an error or because it was told to: nothing will be generated any more."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the engine is doing."""

    running: int
    waiting: int
    used_tokens: int
    kept_tokens: int
    generated_tokens: int
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, kw_only=True)
class _Command:
    """Something to do on the model's thread between two tokens."""

    action: Callable[[], None]
    done: Future[None]


class Scheduler:
    """Runs the model's thread from `start` to `stop`."""

    def __init__(self, model: EngineModel, *, weight_version: str, limits: BatchLimits, max_held: int) -> None:
        self.weight_version = weight_version
        self.limits = limits
        self.last_swap_s = 0.0
        """How long nothing was computed because weights were changed, the last time they were."""
        self._model = model
        self._batch = ContinuousBatch(model, limits)
        self._scorings = ScoringBatch(model, max_tokens=limits.max_total_tokens, step_tokens=limits.prefill_tokens)
        self._max_held = max_held
        self._inbox: queue.SimpleQueue[Generation | Scoring | _Command] = queue.SimpleQueue()
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
    def load(self) -> Load:
        running = self._batch.running + self._scorings.running
        return Load(
            running=running,
            waiting=max(0, self._held - running),
            used_tokens=self._batch.used_tokens,
            kept_tokens=self._batch.kept_tokens,
            generated_tokens=self._batch.generated_tokens,
            prompt_tokens=self._batch.prompt_tokens + self._scorings.scored_tokens,
            cached_tokens=self._batch.cached_tokens,
        )

    def fits(self, length: int) -> bool:
        """Whether a request of so many tokens, prompt and output, can be served at all."""
        return self._batch.fits(length)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread; what it holds is answered as aborted. Stopping what has died already does nothing."""
        if self._death is None:
            self._command(self._stop)
        self._thread.join(timeout_s)

    def submit(self, generation: Generation | Scoring) -> None:
        """Queue it; its `done` is set when it has ended. Raises QueueFullError or EngineDeadError."""
        # From here on it cannot be cancelled, so that the model's thread never meets a future that is settled already.
        generation.done.set_running_or_notify_cancel()
        with self._lock:
            self._raise_if_dead()
            if self._held >= self._max_held:
                raise QueueFullError(f"{self._held} requests are held already, the limit is {self._max_held}")
            self._held += 1
            self._inbox.put(generation)

    def pause(self, mode: PauseMode) -> Future[None]:
        return self._command(lambda: self._pause(mode))

    def resume(self) -> Future[None]:
        return self._command(self._resume)

    def abort(self, request_id: str | None) -> Future[None]:
        """Abort the requests with this id, or all of them."""
        return self._command(lambda: self._abort(lambda g: request_id is None or g.request_id == request_id))

    def withdraw(self, generation: Generation | Scoring) -> Future[None]:
        """Abort this one alone, whatever other requests use its id: its client is gone."""
        return self._command(lambda: self._abort(lambda g: g is generation))

    def flush_cache(self) -> Future[None]:
        """Forget all prefixes. EngineBusyError while requests are held, as in SGLang."""
        return self._command(self._flush)

    def install(self, weights: Staged, *, weight_version: str | None) -> Future[None]:
        """Serve weights that were staged beside the present ones."""
        return self._command(lambda: self._change_weights(lambda: self._model.install(weights), weight_version))

    def write(self, update: PlacedUpdate, *, weight_version: str) -> Future[None]:
        """Change elements of the present weights. WeightMismatchError if these are not the ones to be changed."""
        return self._command(lambda: self._write(update, weight_version))

    def rename_weights(self, weight_version: str) -> Future[None]:
        return self._command(lambda: self._change_weights(lambda: None, weight_version))

    def on_model(self, action: Callable[[EngineModel], None]) -> Future[None]:
        """Look at the model while it computes nothing."""
        return self._command(lambda: action(self._model))

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
                self._read_inbox(wait=self._paused or not self._busy)
                if self._paused or self._stopping:
                    continue
                if self._batch.busy:
                    for generation in self._batch.step(weight_version=self.weight_version):
                        self._answer(generation)
                for scoring in self._scorings.step():
                    self._answer(scoring)
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._die(reason)

    @property
    def _busy(self) -> bool:
        return self._batch.busy or self._scorings.busy

    def _die(self, reason: str) -> None:
        """No request may be left waiting: none that is running or queued, and none that comes in the meantime."""
        with self._lock:
            self._death = EngineDeadError(f"the engine's model thread has ended: {reason}")
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                break
            if isinstance(item, _Command):
                item.done.set_exception(self._death)
            else:
                self._queue(item)
        for generation in self._ended(lambda _: True):
            if self._stopping:
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
            if isinstance(item, _Command):
                _carry_out(item)
            else:
                self._queue(item)

    def _queue(self, request: Generation | Scoring) -> None:
        if isinstance(request, Scoring):
            self._scorings.queue(request)
        else:
            self._batch.queue(request)

    def _answer(self, generation: Generation | Scoring) -> None:
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
            self._batch.retract()
            self._scorings.restart()

    def _resume(self) -> None:
        self._paused = False

    def _abort(self, chosen: Callable[[Generation | Scoring], bool]) -> None:
        for generation in self._ended(chosen):
            self._answer(generation)

    def _ended(self, chosen: Callable[[Generation | Scoring], bool]) -> list[Generation | Scoring]:
        """Requests that are taken out, wherever they are."""
        return [*self._batch.end(chosen), *self._scorings.end(chosen)]

    def _flush(self) -> None:
        if self._busy:
            raise EngineBusyError("the cache is not flushed while requests are held; abort or finish them first")
        self._batch.flush_prefixes()

    def _write(self, update: PlacedUpdate, weight_version: str) -> None:
        if update.base_version != self.weight_version:
            raise WeightMismatchError(
                f"the update changes version {update.base_version}, and {self.weight_version} is served"
            )
        self._change_weights(lambda: self._model.write(update), weight_version)

    def _change_weights(self, change: Callable[[], None], weight_version: str | None) -> None:
        """Requests that run go on with the keys and values they have; no other request may start from those."""
        started = time.monotonic()
        change()
        self._batch.flush_prefixes()
        self._scorings.restart()
        if weight_version is not None:
            self.weight_version = weight_version
        self.last_swap_s = time.monotonic() - started

    def _stop(self) -> None:
        self._stopping = True


def _carry_out(command: _Command) -> None:
    """What is refused changes nothing. Any other error leaves the model in doubt, and ends the thread."""
    try:
        command.action()
    except (WeightMismatchError, EngineBusyError) as error:
        command.done.set_exception(error)
    except BaseException as error:
        command.done.set_exception(EngineDeadError(f"{type(error).__name__}: {error}"))
        raise
    else:
        command.done.set_result(None)
