"""One, two and four ranks publish the same weights: what one rank alone would have, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.template_process import TemplateProcess
from tests.support.trainer.forked_ranks import run_ranks
from tests.support.trainer.publishing_ranks import BLOCK_BYTES, VERSIONS, Scene, run_rank
from tests.support.trainer.storages import SIGNER
from tests.support.weights.small_blocks import cut_small_blocks
from tests.support.weights.weight_site import D
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Verifier
from trimtab.weights import layout
from trimtab.weights.puller import WeightPuller
from trimtab.weights.store.latest import LatestPointer
from trimtab.weights.store.position import Position


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restored when the test is over."""
    monkeypatch.setattr(layout, "BLOCK_BYTES", layout.BLOCK_BYTES)
    monkeypatch.setattr(layout, "_OWN_BLOCK_BYTES", layout._OWN_BLOCK_BYTES)
    cut_small_blocks(BLOCK_BYTES)


class Published:
    """What a group of ranks has published in a store of its own."""

    def __init__(self, template: TemplateProcess, model: Path, nats: NatsSettings, bus: Bus) -> None:
        self._template = template
        self._model = model
        self._nats = nats
        self._bus = bus

    async def by(
        self, count: int, objects: ObjectStoreSettings, folder: Path, *, moved: bool, critic: bool = False
    ) -> tuple[dict[int, str], dict[str, torch.Tensor]]:
        """The digest of each version, and the tensors of the last."""
        topology = JobTopology("t", f"ranks-{count}")
        await KeyValue.declare(self._bus, topology.weights, deadline_s=D)
        objects = objects.model_copy(update={"prefix": f"{objects.prefix}/{count}"})
        scene = Scene(
            model=self._model,
            nats=self._nats,
            objects=objects,
            topology=topology,
            folder=folder,
            moved=moved,
            critic=critic,
        )
        await run_ranks(self._template, run_rank, scene, world_size=count)
        async with ObjectStore(objects) as store:
            latest = await LatestPointer(store, "p").read(deadline_s=D)
            assert latest is not None
            puller = WeightPuller(
                store, "p", Verifier([SIGNER.public_text]), folder=folder / f"copy-{count}",
                spool=folder / f"spool-{count}", member="m", threads=2,
            )  # fmt: skip
            await puller.open()
            assert await puller.pull(deadline_s=D) == Position(1, VERSIONS - 1)
            tensors = load_file(puller.folder / "model.safetensors")
            await puller.close()
        return {entry.target.version: entry.root for entry in latest.catalogue}, tensors


@pytest.fixture
def published(rank_template: TemplateProcess, model: Path, nats_settings: NatsSettings, bus: Bus) -> Published:
    return Published(rank_template, model, nats_settings, bus)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2,), (4,)])
async def test_the_same_weights_are_published_alike_by_any_number_of_ranks(
    published: Published, store_settings: ObjectStoreSettings, tmp_path: Path, counts: tuple[int, ...]
) -> None:
    roots, tensors = await published.by(1, store_settings, tmp_path, moved=True)
    assert len(set(roots.values())) == VERSIONS
    for count in counts:
        its_roots, its_tensors = await published.by(count, store_settings, tmp_path, moved=True)
        assert its_roots == roots
        assert its_tensors.keys() == tensors.keys()
        assert all(torch.equal(its_tensors[name], tensor) for name, tensor in tensors.items())


@pytest.mark.slow
async def test_what_ranks_have_trained_together_is_published_as_one_has_it(
    published: Published, store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    """Sums of gradients are rounded differently, so weights may differ by a rounding, in a few places."""
    roots, tensors = await published.by(1, store_settings, tmp_path, moved=False)
    assert len(set(roots.values())) == VERSIONS
    for count in (2, 4):
        its_roots, its_tensors = await published.by(count, store_settings, tmp_path, moved=False)
        assert its_roots[0] == roots[0], "what they begin with is the same"
        for name, tensor in tensors.items():
            ours, theirs = its_tensors[name].float(), tensor.float()
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3, msg=name)
            assert np.mean((ours != theirs).numpy()) < 0.02, name


@pytest.mark.slow
async def test_a_value_head_is_published_by_ranks_as_by_one(
    published: Published, store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    """It has one row, so all but one rank hold nothing of it."""
    roots, tensors = await published.by(1, store_settings, tmp_path, moved=False, critic=True)
    its_roots, its_tensors = await published.by(2, store_settings, tmp_path, moved=False, critic=True)
    assert its_roots[0] == roots[0]
    assert its_tensors["score.weight"].any()
    for name, tensor in tensors.items():
        torch.testing.assert_close(its_tensors[name].float(), tensor.float(), rtol=1e-2, atol=1e-3, msg=name)
