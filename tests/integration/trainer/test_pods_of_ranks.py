"""One, two and four ranks, one and two in a pod, as whole trainers: the same update, the same weights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.template_process import TemplateProcess
from tests.support.trainer.batch_server import BatchServer
from tests.support.trainer.pods_of_ranks import Dealt, PodsOfRanks
from tests.support.weights.weight_site import SIGNER, D
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Verifier
from trimtab.weights.puller import WeightPuller
from trimtab.weights.store.latest import LatestPointer

STEPS = 3
ROWS = 4
"""In a step: one for each rank of the most that there are."""
Trained = tuple[dict[int, str], dict[str, torch.Tensor]]
"""The digests of the versions, and the tensors of the last."""
Train = Callable[..., Awaitable[Trained]]


@pytest.fixture
def trained(
    rank_template: TemplateProcess,
    bus: Bus,
    model: Path,
    nats_settings: NatsSettings,
    store_settings: ObjectStoreSettings,
    topology: JobTopology,
    tmp_path: Path,
) -> Train:
    async def train(pods: int, ranks_in_each: int, *, launched: bool = False) -> Trained:
        dealt = Dealt(pods=pods, ranks_in_each=ranks_in_each)
        folder = tmp_path / dealt.name
        job = JobTopology(topology.namespace, f"{topology.job}-{dealt.name}")
        objects = store_settings.model_copy(update={"prefix": f"{store_settings.prefix}/{dealt.name}"})
        server = BatchServer(bus, job, steps=STEPS, group_size=ROWS)
        async with await server.open():
            trainer = PodsOfRanks(folder, model, nats_settings, objects, job, dealt)
            await (trainer.launched() if launched else trainer.forked(rank_template))
        ranks = {(request.rank, request.world_size) for request in server.requests}
        assert ranks == {(rank, dealt.ranks) for rank in range(dealt.ranks)}
        async with ObjectStore(objects) as store:
            latest = await LatestPointer(store, "solver").read(deadline_s=D)
            assert latest is not None
            puller = WeightPuller(
                store, "solver", Verifier([SIGNER.public_text]), folder=folder / "copy", spool=folder / "spool",
                member="m", threads=1,
            )  # fmt: skip
            await puller.open()
            await puller.pull(deadline_s=D)
            tensors = load_file(puller.folder / "model.safetensors")
            await puller.close()
        return {entry.target.version: entry.root for entry in latest.catalogue}, tensors

    return train


def check_alike(others: Trained, one: Trained) -> None:
    """Up to rounding, which is another one where gradients are summed up over another number of ranks."""
    roots, tensors = one
    its_roots, its_tensors = others
    assert its_roots[0] == roots[0], "they begin with the same weights"
    for name, tensor in tensors.items():
        torch.testing.assert_close(its_tensors[name].float(), tensor.float(), rtol=1e-2, atol=1e-3, msg=name)


@pytest.mark.slow
async def test_how_ranks_are_dealt_to_pods_changes_nothing(trained: Train) -> None:
    alone = await trained(1, 1)
    assert list(alone[0]) == list(range(STEPS + 1))
    assert len(set(alone[0].values())) == STEPS + 1
    for count in (2, 4):
        each_in_its_own = await trained(count, 1)
        check_alike(each_in_its_own, alone)
        # As a kubelet starts them: rendezvous of two pods, and two ranks that share what a pod has one of.
        two_in_each = await trained(count // 2, 2, launched=count == 4)
        assert two_in_each[0] == each_in_its_own[0], "bit for bit, all versions"
