"""When the model fails on its thread, nobody is left waiting. The models here fail on purpose."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer

from trimtab.rollout.engines.builtin.generation import Generation, SamplingParams
from trimtab.rollout.engines.builtin.model import Batch, EngineModel, WeightMismatchError
from trimtab.rollout.engines.builtin.scheduler import EngineDeadError, QueueFullError, Scheduler
from trimtab.rollout.engines.builtin.server import EngineServer

W = 5.0
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class FailingModel:
    """Computes nothing: after `good` calls it raises, or it holds the thread until it is told to go on."""

    eos_ids: frozenset[int] = frozenset()
    vocabulary = 10
    max_length = 1000

    def __init__(self, *, good: int = 10**9) -> None:
        self._good = good
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.load_error: Exception | None = None

    def _logits(self, rows: int) -> torch.Tensor:
        self.entered.set()
        assert self.go_on.wait(W)
        self._good -= 1
        if self._good < 0:
            raise torch.OutOfMemoryError("no memory left")
        return torch.zeros(rows, self.vocabulary)

    def prefill(self, sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, Batch]:
        return self._logits(len(sequences)), cast(Batch, object())

    def decode(self, tokens: Sequence[int], batch: Batch) -> torch.Tensor:
        return self._logits(len(tokens))

    def keep(self, rows: Sequence[int], batch: Batch) -> None:
        pass

    def load(self, folder: Path) -> None:
        if self.load_error is not None:
            raise self.load_error


def scheduler_of(model: FailingModel, *, max_waiting: int = 100) -> Scheduler:
    scheduler = Scheduler(cast(EngineModel, model), weight_version="0", max_batch=2, max_waiting=max_waiting)
    scheduler.start()
    return scheduler


def generation(request_id: str = "r", *, tokens: int = 5) -> Generation:
    params = SamplingParams(max_new_tokens=tokens)
    return Generation(request_id=request_id, input_ids=[1], params=params, random=random.Random(0))


def test_everyone_running_or_queued_is_told_and_newcomers_are_refused() -> None:
    model = FailingModel(good=2)
    model.go_on.clear()
    scheduler = scheduler_of(model)
    requests = [generation(str(number), tokens=50) for number in range(5)]
    for request in requests:
        scheduler.submit(request)
    assert model.entered.wait(W)
    pause = scheduler.pause("in_place")
    model.go_on.set()
    pause.result(W)
    late = generation("late")
    scheduler.submit(late)
    scheduler.resume().result(W)
    for request in (*requests, late):
        with pytest.raises(EngineDeadError, match="no memory left"):
            request.done.result(W)
    scheduler.ended.result(W)
    assert scheduler.death is not None
    assert (scheduler.running_requests, scheduler.waiting_requests) == (0, 0)
    with pytest.raises(EngineDeadError):
        scheduler.submit(generation())
    with pytest.raises(EngineDeadError):
        scheduler.resume()
    scheduler.stop(timeout_s=W)


def test_weights_that_are_refused_leave_the_engine_alive_and_a_failure_within_ends_it() -> None:
    model = FailingModel()
    scheduler = scheduler_of(model)
    model.load_error = WeightMismatchError("no such tensor")
    with pytest.raises(WeightMismatchError):
        scheduler.update_weights(Path(), weight_version="1").result(W)
    assert scheduler.weight_version == "0"
    request = generation()
    scheduler.submit(request)
    request.done.result(W)
    model.load_error = RuntimeError("half of it copied")
    with pytest.raises(EngineDeadError, match="half of it copied"):
        scheduler.update_weights(Path(), weight_version="1").result(W)
    scheduler.ended.result(W)
    assert scheduler.death is not None


def test_stopping_answers_what_is_held_as_aborted() -> None:
    model = FailingModel()
    scheduler = scheduler_of(model)
    scheduler.pause("in_place").result(W)
    requests = [generation(str(number)) for number in range(4)]
    for request in requests:
        scheduler.submit(request)
    scheduler.stop(timeout_s=W)
    assert [request.finish for request in requests] == ["abort"] * 4
    assert all(request.done.done() for request in requests)


def test_two_requests_with_one_id_both_get_their_own_answer() -> None:
    scheduler = scheduler_of(FailingModel())
    scheduler.pause("in_place").result(W)
    first, second = generation("same", tokens=2), generation("same", tokens=3)
    scheduler.submit(first)
    scheduler.submit(second)
    scheduler.resume().result(W)
    first.done.result(W)
    second.done.result(W)
    assert (len(first.output_ids), len(second.output_ids)) == (2, 3)
    scheduler.stop(timeout_s=W)


def test_whoever_withdraws_does_not_disturb_a_namesake_and_gives_its_place_back() -> None:
    scheduler = scheduler_of(FailingModel(), max_waiting=2)
    scheduler.pause("in_place").result(W)
    first, second = generation("same"), generation("same")
    scheduler.submit(first)
    scheduler.submit(second)
    with pytest.raises(QueueFullError, match="limit is 2"):
        scheduler.submit(generation())
    scheduler.withdraw(first).result(W)
    assert first.finish == "abort"
    third = generation()
    scheduler.submit(third)
    scheduler.resume().result(W)
    second.done.result(W)
    third.done.result(W)
    assert (second.finish, third.finish) == ("length", "length")
    scheduler.stop(timeout_s=W)


def test_a_waiter_that_gives_up_does_not_break_the_thread() -> None:
    model = FailingModel()
    scheduler = scheduler_of(model)
    request = generation()
    scheduler.submit(request)
    assert not request.done.cancel()
    update = scheduler.update_weights(Path(), weight_version="1")
    assert not update.cancel()
    request.done.result(W)
    update.result(W)
    assert scheduler.death is None
    scheduler.stop(timeout_s=W)


async def test_over_http_a_dead_model_is_503_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.rollout.engines.builtin.server._LINGER_S", 600.0)
    model = FailingModel(good=0)
    scheduler = scheduler_of(model)
    server = EngineServer(cast(EngineModel, model), scheduler, model_path=Path("model"))
    async with TestClient(TestServer(server.application())) as client:
        assert (await client.get("/health")).status == 200
        answer = await client.post("/generate", json={"input_ids": [1]})
        assert answer.status == 503
        assert "no memory left" in (await answer.json())["error"]["message"]
        assert (await client.get("/health")).status == 503
        for path, body in (("/generate", {"input_ids": [1]}), ("/pause_generation", {}), ("/continue_generation", {})):
            assert (await client.post(path, json=body)).status == 503
        assert server.failed
