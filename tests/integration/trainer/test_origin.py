"""A learner that begins at another job's checkpoint: whose it is, which step, and what of it is taken over."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import tiny_model
from examples.quickstart.make import CHARACTERS
from tests.support.trainer.samples import policy, rows, train_on
from tests.support.trainer.storages import SIGNER, StorageSpec, same, seal_of, state_of
from trimtab.api.resume import ResumeFrom
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, PodSettings, ResumeSettings, Settings
from trimtab.fabric.signing import Signer
from trimtab.trainer.background import Background
from trimtab.trainer.checkpoints.origin import open_origin
from trimtab.trainer.checkpoints.resume import begin_at, resume
from trimtab.trainer.checkpoints.saver import CheckpointSaver
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner

FIELD = "spec.resumeFrom"


@pytest.fixture(scope="module")
def there(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 1 and 2 of a job, as `trainer.checkpoint.uri` has them."""
    folder = tmp_path_factory.mktemp("there")
    learner = Learner(policy(), model_path=model)
    with Background() as background:
        checkpoints = CheckpointStore(StorageSpec(folder / "solver").open(), seal_of(), keep=3)
        background.run(checkpoints.claim(1))
        saver = CheckpointSaver(learner, checkpoints, background, rank=0, acknowledge=told)
        for step in range(2):
            train_on(learner, rows(4, seed=step), of=4)
            saver.begin(lease_id="lease")
            saver.flush()
            torch.save(state_of(learner), folder / f"{step + 1}.pt")
    return folder


async def told(step: int, *, lease_id: str, weight_version: int) -> None:
    assert step >= 0, "the step before the first one was acknowledged"


def settings(found: ResumeSettings | None = None) -> Settings:
    return Settings(
        pod=PodSettings(namespace="n", job="new", role="trainer", name="new-solver-trainer-0"),
        nats=NatsSettings(servers=("nats://127.0.0.1:1",)),
        object_store=ObjectStoreSettings(bucket="none"),
        resume=found,
    )


def begun(model: Path, wanted: dict[str, Any], found: ResumeSettings | None = None) -> Learner:
    learner = Learner(policy(), model_path=model)
    with Background() as background:
        stack = AsyncExitStack()
        try:
            origin = background.run(
                open_origin(
                    policy(), ResumeFrom.model_validate(wanted), settings(found), job_folder=Path("/"), stack=stack
                )
            )
            begin_at(learner, origin, background, rank=0)
        finally:
            background.run(stack.aclose())
    return learner


def known(there: Path, **changes: Any) -> ResumeSettings:
    return ResumeSettings.model_validate(
        {"place": str(there), "job": "n/j", "public_key": SIGNER.public_text} | changes
    )


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("optimizer", [False, True])
def test_it_begins_with_its_weights_and_counts_from_the_beginning(
    model: Path, there: Path, step: int | None, optimizer: bool
) -> None:
    learner = begun(model, {"job": "j", "step": step, "optimizer": optimizer}, known(there))
    assert learner.step == 0
    expected = torch.load(there / f"{step or 2}.pt", weights_only=True)
    if not optimizer:
        names = set(dict(learner.model.named_parameters()))
        expected = {name: tensor for name, tensor in expected.items() if name in names}
    assert same(state_of(learner), expected)


def test_the_step_that_was_looked_up_counts(model: Path, there: Path) -> None:
    learner = begun(model, {"job": "j", "step": "Best"}, known(there, steps="solver=1"))
    weight = next(iter(dict(learner.model.named_parameters())))
    assert torch.equal(state_of(learner)[weight], torch.load(there / "1.pt", weights_only=True)[weight])


def test_of_the_steps_that_did_best_the_first_that_is_kept_counts(model: Path, there: Path) -> None:
    learner = begun(model, {"job": "j", "step": "Best"}, known(there, steps="solver=9/1/2"))
    weight = next(iter(dict(learner.model.named_parameters())))
    assert torch.equal(state_of(learner)[weight], torch.load(there / "1.pt", weights_only=True)[weight])


def test_a_place_and_a_key_are_as_good_as_a_job(model: Path, there: Path) -> None:
    learner = begun(model, {"checkpoint": str(there), "publicKey": SIGNER.public_text})
    weight = next(iter(dict(learner.model.named_parameters())))
    assert torch.equal(state_of(learner)[weight], torch.load(there / "2.pt", weights_only=True)[weight])


@pytest.mark.parametrize(
    ("wanted", "changes", "said"),
    [
        ({"job": "j", "step": 7}, {}, "no checkpoint of step 7; there are those of 2, 1"),
        ({"job": "j", "step": "Best"}, {"steps": "solver=8/9"}, "solver: none .* of steps 2, 1, was evaluated"),
        ({"job": "j", "step": "Best"}, {}, "step: Best is not known here"),
        ({"job": "j"}, {"place": "/nowhere"}, "/nowhere: there are no checkpoints of a policy solver"),
        ({"job": "j"}, {"public_key": Signer.generate().public_text}, "not signed by any of the 1 trusted keys"),
        ({"job": "j"}, {"job": "n/another"}, "of policy solver of job n/j, not of solver of n/another"),
        ({"job": "j"}, {"public_key": "none"}, "publicKey: a public key has 3 bytes"),
    ],
)
def test_what_cannot_be_begun_with_is_named(
    model: Path, there: Path, wanted: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(JobMisconfigured, match=said) as refused:
        begun(model, wanted, known(there, **changes))
    assert FIELD in str(refused.value)


def test_a_job_that_nobody_has_looked_up_is_refused(model: Path) -> None:
    with pytest.raises(JobMisconfigured, match="TRIMTAB_RESUME__"):
        begun(model, {"job": "j"})


def test_a_model_of_another_shape_is_refused(tmp_path: Path, there: Path) -> None:
    tiny_model.make_model(tmp_path, characters=CHARACTERS, width=128, layers=5, seed=0)
    with pytest.raises(JobMisconfigured, match=r"no fitting .*layers\.4.*policies\[solver\]"):
        begun(tmp_path, {"job": "j"}, known(there))


def test_what_it_began_with_is_its_own_from_then_on(model: Path, there: Path, tmp_path: Path) -> None:
    """Its first checkpoint is of step 0, which nobody has to acknowledge, and is resumed like any other."""
    learner = begun(model, {"job": "j", "optimizer": True}, known(there))
    signer = Signer.generate()
    seal = seal_of(signer, job="n/new")
    storage = StorageSpec(tmp_path / "own").open()
    with Background() as background:
        own = CheckpointStore(storage, seal, keep=1)
        background.run(own.claim(1))
        saver = CheckpointSaver(learner, own, background, rank=0, acknowledge=told)
        saver.begin(lease_id="")
        saver.flush()
        again = Learner(policy(), model_path=model)
        successor = CheckpointStore(storage, seal, keep=1)
        background.run(successor.claim(2))
        assert resume(again, successor, background, rank=0)
    assert again.step == 0
    assert same(state_of(again), state_of(learner))
