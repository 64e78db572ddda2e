"""A trainer that is not Trimtab's: REINFORCE in plain torch, on the two interfaces that any trainer has.

BatchStream gives the rows of a step, WeightPublisher takes the weights. Everything between is yours: this one has a
loop of forty lines. The manifest names it in policies[].trainer.template (see job.yaml).
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from trimtab.api.policy import Policy
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.pod import JobPodSettings, Pod, pod_settings, run_pod, running_pod
from trimtab.fabric.wire.lease import StepTiming
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import Row
from trimtab.trainer.batch_stream import BatchStream, PortionId, RankIdentity, Trained
from trimtab.trainer.checkpoints.index import CheckpointIndex
from trimtab.trainer.checkpoints.parts import FileOnDisk
from trimtab.trainer.checkpoints.registry import open_seal, open_storage
from trimtab.trainer.checkpoints.resume import meet_ledger
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.model_weights import ModelWeights
from trimtab.trainer.publisher import open_publisher
from trimtab.weights.publisher import WeightPublisher

DEADLINE_S = 120.0


class TrainerSettings(JobPodSettings):
    """What the pod is told: which attempt of the trainer it is, and where it may write."""

    attempt: int = 0
    scratch: Path


def learn(model: PreTrainedModel, optimizer: torch.optim.Optimizer, rows: list[Row], *, temperature: float) -> float:
    """One update: log probabilities of what was said, weighted by how much better than the others it was."""
    total = 0.0
    episodes = sum(1 / row.episode.rows for row in rows)
    for row in rows:
        tokens = torch.from_numpy(row.token_ids.astype("int64"))
        logprobs = torch.log_softmax(model(tokens[None]).logits[0, :-1] / temperature, dim=-1)
        said = logprobs.gather(-1, tokens[1:, None])[:, 0]
        worth = torch.from_numpy(row.advantages[1:] * row.mask[1:])
        loss = -(worth * said).sum() / row.episode.trained_tokens / episodes
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


async def train(pod: Pod[TrainerSettings], policy: Policy, stack: AsyncExitStack) -> None:
    settings = pod.settings
    store = await stack.enter_async_context(ObjectStore(settings.object_store))
    pointers = KeyValue(pod.bus, pod.topology.weights)
    pools, attempt = pod.job.spec.pools, settings.attempt
    publisher = await open_publisher(
        store, pointers, policy, settings, pools=pools, attempt=attempt, scratch=settings.scratch, stack=stack
    )
    storage = await open_storage(policy, settings, store=store, job_folder=pod.folder, stack=stack)
    checkpoints = CheckpointStore(storage, open_seal(policy, settings), keep=policy.trainer.checkpoint.keep)
    await checkpoints.claim(publisher.epoch)

    model = AutoModelForCausalLM.from_pretrained(pod.folder / policy.weights.uri, dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=policy.algorithm.optimizer.learning_rate, momentum=0.9)
    step = 0
    if (newest := await checkpoints.newest()) is not None:
        saved = settings.scratch / "resumed.safetensors"
        await checkpoints.fetch(newest.files[0], saved)
        model.load_state_dict(load_file(saved))
        step = newest.step

    stream = BatchStream(
        pod.bus,
        pod.topology.batch_subject(policy.name),
        RankIdentity(job=settings.pod.job, policy=policy.name, rank=0, world_size=1, attempt=settings.attempt),
        advantages=AdvantageRule.of(policy),
        clock=time.time,
    )
    await meet_ledger(stream, step=step, proof=checkpoints.proof, where=storage.pointer, stopping=pod.stopping.is_set)
    timing: StepTiming | None = None
    await publish(publisher, model, step)
    while True:
        began = time.monotonic()
        rows: list[Row] = []
        chunk, lease_id, last = 0, "", False
        while not last:
            portion_id = PortionId(step=step, chunk=chunk)
            trained = Trained(steps=step, previous=timing)
            portion = await stream.portion(portion_id, trained=trained, stopping=pod.stopping.is_set)
            if portion is None:
                return
            rows += portion.rows
            chunk, lease_id, last = chunk + 1, portion.lease_id, portion.totals is not None
        waited = time.monotonic() - began
        await asyncio.to_thread(learn, model, optimizer, rows, temperature=policy.sampling.temperature)
        step += 1
        # Durable before acknowledged: a step that is acknowledged is never asked for again.
        await write(checkpoints, model, step, lease_id, folder=settings.scratch)
        await stream.acknowledge(step - 1, lease_id=lease_id, weight_version=step)
        await publish(publisher, model, step)
        timing = StepTiming(wait_seconds=waited, step_seconds=time.monotonic() - began)


async def write(
    checkpoints: CheckpointStore, model: PreTrainedModel, step: int, lease_id: str, *, folder: Path
) -> None:
    """The file, then the index that puts it in force."""
    path = folder / "unfinished.safetensors"
    await asyncio.to_thread(save_file, model.state_dict(), path)
    file = await checkpoints.put(FileOnDisk(path), step=step)
    await checkpoints.commit(
        CheckpointIndex(
            epoch=checkpoints.epoch, step=step, lease_id=lease_id, world_size=1, optimizer_steps={}, files=(file,)
        )
    )


async def publish(publisher: WeightPublisher, model: PreTrainedModel, version: int) -> None:
    captured = await asyncio.to_thread(publisher.capture, ModelWeights(model, dtype=torch.float32))
    await publisher.publish(version, captured, deadline_s=DEADLINE_S)


async def main(settings: TrainerSettings) -> None:
    async with AsyncExitStack() as stack:
        pod = await stack.enter_async_context(running_pod(settings, signals=(signal.SIGTERM, signal.SIGINT)))
        await declare_job(pod.bus, pod.topology, deadline_s=DEADLINE_S)
        policy = next(policy for policy in pod.job.spec.policies if policy.name == settings.pod.policy)
        await train(pod, policy, stack)


if __name__ == "__main__":
    run_pod(main(pod_settings(TrainerSettings)))
