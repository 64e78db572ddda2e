"""Ranks that load a model, publish their shares of it through a real store, train on, and publish again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.trainer.samples import critic_policy, policy, rows, train_on
from tests.support.trainer.storages import SIGNER
from tests.support.weights.small_blocks import cut_small_blocks
from tests.support.weights.weight_site import RULES, D
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.trainer.background import Background
from trimtab.trainer.learner import Learner
from trimtab.trainer.network.spread import held_here
from trimtab.trainer.rank_exchange import RankExchange
from trimtab.weights.baseline import WeightShare
from trimtab.weights.publisher import WeightPublisher

SAMPLES = 8
VERSIONS = 3
BLOCK_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Scene:
    """`moved`: the weights change as a function of where they are in the model, the same for any number of ranks.
    Otherwise they are trained."""

    model: Path
    nats: NatsSettings
    objects: ObjectStoreSettings
    topology: JobTopology
    folder: Path
    moved: bool
    critic: bool = False


def run_rank(scene: Scene, rank: int) -> None:
    """Every rank owns something of what is published."""
    cut_small_blocks(BLOCK_BYTES)
    made = critic_policy(dtype="bfloat16") if scene.critic else policy(dtype="bfloat16")
    learner = Learner(made, model_path=scene.model)
    with Background() as background:
        background.run(_publish(scene, learner, rank=rank))


async def _publish(scene: Scene, learner: Learner, *, rank: int) -> None:
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    async with await Bus.connect(scene.nats, name="rank") as bus, ObjectStore(scene.objects) as store:
        publisher = await WeightPublisher.open(
            store, KeyValue(bus, scene.topology.weights), job=scene.topology.job, policy="p", signer=SIGNER,
            rules=RULES, clock=lambda: 1.0, folder=scene.folder / f"{ranks}-{rank}", deadline_s=D, group=RankExchange(),
        )  # fmt: skip
        for version in range(VERSIONS):
            weights = learner.weights()
            assert isinstance(weights, WeightShare) == (ranks > 1)
            assert not isinstance(weights, WeightShare) or weights.own
            captured = await asyncio.to_thread(publisher.capture, weights)
            await publisher.publish(version, captured, deadline_s=D)
            if scene.moved:
                _move(learner, version)
            else:
                train_on(learner, rows(SAMPLES, seed=version)[rank::ranks], of=SAMPLES)
        await publisher.close()


@torch.no_grad()
def _move(learner: Learner, version: int) -> None:
    """By more than rounding to bfloat16 hides, where the value itself says so."""
    for parameter in learner.model.parameters():
        held = held_here(parameter)
        chosen = (held.view(torch.int32) + version) % 50 == 0
        held.copy_(torch.where(chosen, held * 1.02, held))
