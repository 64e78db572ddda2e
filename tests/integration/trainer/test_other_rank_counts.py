"""A checkpoint of any number of ranks is resumed by any other, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.template_process import TemplateProcess
from tests.support.trainer.checkpointing_ranks import Scene, run_rank
from tests.support.trainer.forked_ranks import run_ranks
from tests.support.trainer.storages import StorageSpec, same, seal_of
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.trainer.checkpoints.index import CheckpointIndex
from trimtab.trainer.checkpoints.store import CheckpointStore

pytestmark = pytest.mark.slow

State = dict[str, torch.Tensor]


class Groups:
    """One group of ranks after the other on the same checkpoints."""

    def __init__(
        self,
        template: TemplateProcess,
        model: Path,
        storage: StorageSpec,
        folder: Path,
        origin: StorageSpec | None = None,
    ) -> None:
        self._origin = origin
        self._template = template
        self._model = model
        self._storage = storage
        self._folder = folder
        self._epoch = 0
        self.failures: list[str] = []

    def beginning_here(self, folder: Path) -> Groups:
        """Those of a new job, with checkpoints of its own in the folder."""
        folder.mkdir()
        return Groups(self._template, self._model, StorageSpec(folder / "storage"), folder, origin=self._storage)

    async def newest(self) -> CheckpointIndex:
        index = await CheckpointStore(self._storage.open(), seal_of(), keep=1).newest()
        assert index is not None
        return index

    async def run(
        self, world_size: int, *, steps: int, refused_rank: int | None = None, critic: bool = False
    ) -> tuple[list[State], list[State]]:
        """What each rank had when it had resumed, and when it saved."""
        self._epoch += 1
        target = self._folder / str(self._epoch)
        target.mkdir()
        scene = Scene(
            model=self._model,
            storage=self._storage,
            epoch=self._epoch,
            world_size=world_size,
            steps=steps,
            target=target,
            refused_rank=refused_rank,
            critic=critic,
            origin=self._origin,
        )
        await run_ranks(self._template, run_rank, scene, world_size=world_size)
        self.failures = [path.read_text() for path in map(scene.failure, range(world_size)) if path.exists()]
        resumed = [load_file(scene.told("resumed", rank)) for rank in range(world_size)]
        return resumed, [load_file(scene.told("saved", rank)) for rank in range(world_size)] if steps else []


@pytest.fixture(params=["objects", "folder"])
def groups(
    request: pytest.FixtureRequest,
    rank_template: TemplateProcess,
    model: Path,
    tmp_path: Path,
    store_settings: ObjectStoreSettings,
) -> Groups:
    objects = store_settings if request.param == "objects" else None
    return Groups(rank_template, model, StorageSpec(tmp_path / "storage", objects), tmp_path)


def without_random(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if name != "random"}


async def test_two_then_one_then_four_then_two(groups: Groups) -> None:
    _, saved = await groups.run(2, steps=2)
    sizes = [file.size for file in (await groups.newest()).files]
    assert max(sizes) < 0.55 * sum(sizes), "each rank writes its own half"
    for world_size in (1, 4, 2):
        resumed, saved_next = await groups.run(world_size, steps=1)
        for state in resumed:
            assert same(without_random(state), without_random(saved[0]))
        assert not torch.equal(saved_next[0]["exp_avg.lm_head.weight"], resumed[0]["exp_avg.lm_head.weight"])
        saved = saved_next
    assert saved[0]["at"] == 5


async def test_a_job_of_four_begins_at_a_checkpoint_of_two(groups: Groups, tmp_path: Path) -> None:
    _, saved = await groups.run(2, steps=2)
    successors = groups.beginning_here(tmp_path / "new")
    begun, saved_next = await successors.run(4, steps=1)
    for state in begun:
        assert state.pop("at") == 0
        assert same(without_random(state), {k: v for k, v in without_random(saved[0]).items() if k != "at"})
    resumed, _ = await successors.run(2, steps=0)
    assert same(without_random(resumed[0]), without_random(saved_next[0]))


@pytest.mark.parametrize("groups", ["folder"], indirect=True)
async def test_a_critic_of_two_then_of_four_then_of_one(groups: Groups) -> None:
    """Its head has one row, of which all but one rank hold nothing."""
    _, saved = await groups.run(2, steps=2, critic=True)
    assert saved[0]["score.weight"].any()
    for world_size in (4, 1):
        resumed, saved_next = await groups.run(world_size, steps=1, critic=True)
        for state in resumed:
            assert same(without_random(state), without_random(saved[0]))
        assert not torch.equal(saved_next[0]["score.weight"], resumed[0]["score.weight"])
        saved = saved_next


@pytest.mark.parametrize("groups", ["folder"], indirect=True)
async def test_random_numbers_go_on_or_begin_the_same_each_time(groups: Groups) -> None:
    _, saved = await groups.run(2, steps=1)
    resumed, _ = await groups.run(2, steps=0)
    for before, after in zip(saved, resumed, strict=True):
        assert torch.equal(before["random"], after["random"])
    assert not torch.equal(resumed[0]["random"], resumed[1]["random"]), "each rank has its own"
    first, _ = await groups.run(3, steps=0)
    second, _ = await groups.run(3, steps=0)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one["random"], other["random"])
    assert not torch.equal(first[0]["random"], first[1]["random"])
    assert not torch.equal(first[0]["random"], saved[0]["random"])


@pytest.mark.parametrize("groups", ["folder"], indirect=True)
async def test_a_rank_that_cannot_write_fails_the_checkpoint_on_all(groups: Groups) -> None:
    await groups.run(2, steps=1)
    await groups.run(2, steps=1, refused_rank=1)
    assert sorted(groups.failures) == [
        "checkpoint 2 could not be written: the bucket is gone",
        "rank 1 could not write checkpoint 2: the bucket is gone",
    ]
    assert (await groups.newest()).step == 1
