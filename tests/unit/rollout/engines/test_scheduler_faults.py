"""When the model fails on its thread, nobody is left waiting. The models here fail on purpose."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.polling import eventually
from trimtab.rollout.engines.builtin.batch import BatchLimits
from trimtab.rollout.engines.builtin.generation import Generation, SamplingParams
from trimtab.rollout.engines.builtin.kv_rows import Arena
from trimtab.rollout.engines.builtin.model import EngineModel, Staged
from trimtab.rollout.engines.builtin.scheduler import EngineDeadError, QueueFullError, Scheduler
from trimtab.rollout.engines.builtin.server import EngineServer
from trimtab.rollout.engines.builtin.sparse_update import SparseTensor, SparseUpdate, WeightMismatchError
from trimtab.rollout.engines.builtin.transformer import Piece

W = 60.0
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class FailingModel(EngineModel):
    """After `good` passes it raises, or it holds the thread until it is told to go on."""

    def __init__(self, path: Path, *, good: int = 10**9) -> None:
        super().__init__(path, device="cpu")
        self._good = good
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.install_error: Exception | None = None

    def _pass(self) -> None:
        self.entered.set()
        assert self.go_on.wait(W)
        self._good -= 1
        if self._good < 0:
            raise torch.OutOfMemoryError("no memory left")

    def extend(self, pieces: Sequence[Piece]) -> torch.Tensor:
        self._pass()
        return super().extend(pieces)

    def decode(self, arenas: Sequence[Arena[Any]], tokens: Sequence[int]) -> torch.Tensor:
        self._pass()
        return super().decode(arenas, tokens)

    def install(self, staged: Staged) -> None:
        if self.install_error is not None:
            raise self.install_error
        super().install(staged)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=10, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def scheduler_of(model: FailingModel, *, max_held: int = 100) -> Scheduler:
    scheduler = Scheduler(model, weight_version="0", limits=BatchLimits(max_running=2), max_held=max_held)
    scheduler.start()
    return scheduler


def generation(request_id: str = "r", *, tokens: int = 5) -> Generation:
    return Generation(request_id=request_id, input_ids=[1], params=SamplingParams(max_new_tokens=tokens), seed=0)


def test_everyone_running_or_queued_is_told_and_newcomers_are_refused(folder: Path) -> None:
    model = FailingModel(folder, good=2)
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
    assert (scheduler.load.running, scheduler.load.waiting) == (0, 0)
    with pytest.raises(EngineDeadError):
        scheduler.submit(generation())
    with pytest.raises(EngineDeadError):
        scheduler.resume()
    scheduler.stop(timeout_s=W)


def test_weights_that_are_refused_leave_the_engine_alive_and_a_failure_within_ends_it(folder: Path) -> None:
    model = FailingModel(folder)
    scheduler = scheduler_of(model)
    change = SparseTensor(name="model.norm.weight", indices=torch.tensor([8]), values=torch.ones(1))
    for update, message in (
        (SparseUpdate(base_version="0", tensors=(change,)), "points outside its 8 elements"),
        (SparseUpdate(base_version="7", tensors=()), "changes version 7, and 0 is served"),
    ):
        with pytest.raises(WeightMismatchError, match=message):
            scheduler.write(model.place(update), weight_version="1").result(W)
    assert scheduler.weight_version == "0"
    request = generation()
    scheduler.submit(request)
    request.done.result(W)
    model.install_error = RuntimeError("half of it copied")
    with pytest.raises(EngineDeadError, match="half of it copied"):
        scheduler.install(model.stage(folder), weight_version="1").result(W)
    scheduler.ended.result(W)
    assert scheduler.death is not None


def test_stopping_answers_what_is_held_as_aborted(folder: Path) -> None:
    model = FailingModel(folder)
    scheduler = scheduler_of(model)
    scheduler.pause("in_place").result(W)
    requests = [generation(str(number)) for number in range(4)]
    for request in requests:
        scheduler.submit(request)
    scheduler.stop(timeout_s=W)
    assert [request.finish for request in requests] == ["abort"] * 4
    assert all(request.done.done() for request in requests)


def test_two_requests_with_one_id_both_get_their_own_answer(folder: Path) -> None:
    scheduler = scheduler_of(FailingModel(folder))
    scheduler.pause("in_place").result(W)
    first, second = generation("same", tokens=2), generation("same", tokens=3)
    scheduler.submit(first)
    scheduler.submit(second)
    scheduler.resume().result(W)
    first.done.result(W)
    second.done.result(W)
    assert (len(first.output_ids), len(second.output_ids)) == (2, 3)
    scheduler.stop(timeout_s=W)


def test_whoever_withdraws_does_not_disturb_a_namesake_and_gives_its_place_back(folder: Path) -> None:
    scheduler = scheduler_of(FailingModel(folder), max_held=2)
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


def test_a_waiter_that_gives_up_does_not_break_the_thread(folder: Path) -> None:
    model = FailingModel(folder)
    scheduler = scheduler_of(model)
    request = generation()
    scheduler.submit(request)
    assert not request.done.cancel()
    update = scheduler.rename_weights("1")
    assert not update.cancel()
    request.done.result(W)
    update.result(W)
    assert scheduler.death is None
    scheduler.stop(timeout_s=W)


async def test_over_http_a_dead_model_is_503_everywhere(folder: Path) -> None:
    model = FailingModel(folder, good=0)
    scheduler = scheduler_of(model)
    server = EngineServer(model, scheduler, model_path=folder, seeds=random.Random(0), linger_s=600.0)
    async with TestClient(TestServer(server.application())) as client:
        assert (await client.get("/health")).status == 200
        answer = await client.post("/generate", json={"input_ids": [1], "sampling_params": {"max_new_tokens": 9}})
        assert answer.status == 503
        assert "no memory left" in (await answer.json())["error"]["message"]
        assert (await client.get("/health")).status == 503
        assert (await client.get("/health_generate")).status == 503
        for path, body in (
            ("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 9}}),
            ("/pause_generation", {}),
            ("/continue_generation", {}),
        ):
            assert (await client.post(path, json=body)).status == 503
        await eventually(lambda: server.failed, timeout_s=W)
