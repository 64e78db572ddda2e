"""SIGKILLs of trainer ranks at random moments, in the midst of checkpoints and publications too: training ends
where it would have, with the same weights bit for bit, and every sample is in them once. What pools find after each of
them is a whole version, the last or the next, as a trainer that lives would have published it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.polling import eventually
from tests.support.sizes import FULL, Sizes
from tests.support.template_process import TemplateProcess, template_process
from tests.support.trainer.batch_server import GROUP_SIZE
from tests.support.trainer.killed_rank import (
    BLOCK_BYTES,
    MOMENTS,
    RANK_0_ALONE,
    RANKS,
    TRAINING,
    Death,
    Dying,
    Note,
    RankPlan,
    Resumed,
    TrainedOn,
    notes,
    prepare,
    run_rank,
)
from tests.support.trainer.samples import policy
from tests.support.trainer.storages import seal_of
from tests.support.trainer.strict_batch_server import StrictBatchServer
from tests.support.weights.small_blocks import cut_small_blocks
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.ports import free_ports
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.trainer.checkpoints.index import CheckpointIndex
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.rank_place import TrainerPodSettings
from trimtab.weights import layout
from trimtab.weights.puller import WeightPuller
from trimtab.weights.store.latest import LatestPointer
from trimtab.weights.store.position import Position

SEED = 20261115
STEPS_PER_LIFE = 8
"""An attempt can make no more before it dies."""
STEPS_AFTERWARDS = 4
MOST_STEPS = FULL.rank_kills * STEPS_PER_LIFE + STEPS_AFTERWARDS
EVERY_STEPS = 2
_LATEST_S = 4.0
_LIFE_S = 60.0
_WHOLE_RUN_S = 120.0
_LOOK_S = 0.01
_PULL_S = 60.0


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ranks cut them, so that each has some; restored when the test is over."""
    monkeypatch.setattr(layout, "BLOCK_BYTES", layout.BLOCK_BYTES)
    monkeypatch.setattr(layout, "_OWN_BLOCK_BYTES", layout._OWN_BLOCK_BYTES)
    cut_small_blocks(BLOCK_BYTES)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsSettings]:
    with EmbeddedNats(tmp_path_factory.mktemp("nats")) as server:
        yield server.settings


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStoreSettings]:
    with EmbeddedSeaweed(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server.settings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        # Alike, so that torch has few shapes to learn how to spread in every life.
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[TemplateProcess]:
    folder = tmp_path_factory.mktemp("template")
    (folder / "model").symlink_to(model)
    write_job(folder, JobTopology("t", "template"))
    with template_process(partial(prepare, folder / "job.yaml")) as started:
        yield started


def write_job(folder: Path, topology: JobTopology, *, every_steps: int = EVERY_STEPS) -> None:
    trained = policy(checkpoint={"everySteps": every_steps, "keep": 2}, publish={"everySteps": EVERY_STEPS})
    manifest = {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": topology.job, "namespace": topology.namespace},
        "spec": {
            "maxSteps": MOST_STEPS,
            "workflow": {"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
            "data": {
                "prompts": [{"name": "x", "jsonl": {"uri": "x"}}],
                "groupSize": 2,
                "batchSize": 2,
                # No version is passed over, so that any two runs publish the same ones.
                "maxStaleness": EVERY_STEPS - 1,
            },
            "policies": [trained.model_dump(mode="json", exclude_none=True)],
            "pools": [{"name": "local"}],
        },
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest))


class Site:
    """One job: its manifest, its store, its streams, and the attempts of its trainer."""

    def __init__(
        self, template: TemplateProcess, folder: Path, model: Path, nats: NatsSettings, objects: ObjectStoreSettings
    ) -> None:
        self._template = template
        self.folder = folder
        self.nats = nats
        self.objects = objects.model_copy(update={"prefix": f"t/{uuid.uuid4().hex}"})
        self.topology = JobTopology("t", f"k{uuid.uuid4().hex[:12]}")
        self._signer = Signer.generate()
        self._alive: set[int] = set()
        folder.mkdir()
        (folder / "model").symlink_to(model)
        write_job(folder, self.topology)

    def start(self, attempt: int, *, victim: int | None = None, death: Death | None = None) -> list[int]:
        """The process ids of the ranks of one attempt."""
        (port,) = free_ports(1)
        settings = TrainerPodSettings.model_validate(
            {
                "pod": {
                    "namespace": self.topology.namespace,
                    "job": self.topology.job,
                    "role": "trainer",
                    "name": "trainer-0",
                    "policy": "solver",
                },
                "nats": self.nats,
                "object_store": self.objects,
                "weights": {"signing_seed": self._signer.reveal_seed()},
                "probes": {"host": "127.0.0.1", "port": 0},
                "job_file": self.folder / "job.yaml",
                # Another attempt is another pod, with a disk of its own; ranks of the one before may still be alive.
                "scratch": self.folder / "scratch" / str(attempt),
                "attempt": attempt,
            }
        )
        pids = []
        for rank in range(RANKS):
            plan = RankPlan(
                settings=settings, rank=rank, port=port, folder=self.folder, death=death if rank == victim else None
            )
            pids.append(self._template.start(run_rank, plan))
        self._alive.update(pids)
        return pids

    async def ending(self, pid: int, *, timeout_s: float) -> int:
        """The exit code of a rank that ends by itself, or minus the signal it died of."""
        endings: list[int] = []

        def ended() -> bool:
            ending = self._template.ended(pid)
            endings.extend([] if ending is None else [ending])
            return bool(endings)

        await eventually(ended, timeout_s=timeout_s, interval_s=_LOOK_S)
        self._alive.discard(pid)
        return os.waitstatus_to_exitcode(endings[0])

    def end(self, pid: int) -> None:
        """Kill it if it is still there, as torchrun does with the ranks that are left."""
        if pid in self._alive:
            self._alive.discard(pid)
            self._template.end(pid)

    def end_all(self) -> None:
        for pid in list(self._alive):
            self.end(pid)

    async def result(self) -> tuple[CheckpointIndex, dict[str, torch.Tensor]]:
        """What the last checkpoint holds, each rank's shards by name."""
        async with ObjectStore(self.objects) as store:
            storage = ObjectStorage(store, "checkpoints/solver")
            checkpoints = CheckpointStore(
                storage, seal_of(self._signer, job=f"{self.topology.namespace}/{self.topology.job}"), keep=2
            )
            index = await checkpoints.newest()
            assert index is not None
            shards: dict[str, torch.Tensor] = {}
            for file in index.files:
                path = self.folder / f"result-{file.rank}"
                await checkpoints.fetch(file, path)
                shards |= {f"{file.rank} {name}": tensor for name, tensor in load_file(path).items()}
            assert len({name.split("/")[1] for name in await storage.names()}) == 2, "kept are two, and no leftovers"
        return index, shards

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[Pool]:
        """A pool that pulls what its trainer publishes."""
        async with ObjectStore(self.objects) as store:
            puller = WeightPuller(
                store, "solver", Verifier([self._signer.public_text]), folder=self.folder / "copy",
                spool=self.folder / "spool", member="pool", threads=1,
            )  # fmt: skip
            await puller.open()
            try:
                yield Pool(store, puller)
            finally:
                await puller.close()

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log"))[-4:]
        )


class Pool:
    """Remembers the digest of every version that it has come upon, and asks for no two of one version."""

    def __init__(self, store: ObjectStore, puller: WeightPuller) -> None:
        self._store = store
        self._puller = puller
        self._held = Position(0, 0)
        self.roots: dict[int, str] = {}

    async def pull(self) -> None:
        """Whatever is published can be had whole: every block is verified on the way."""
        latest = await LatestPointer(self._store, "solver").read(deadline_s=_PULL_S)
        if latest is None or latest.newest is None:
            return
        for entry in latest.catalogue:
            version = entry.target.version
            assert self.roots.setdefault(version, entry.root) == entry.root, f"version {version} was two things"
        held = await self._puller.pull(deadline_s=_PULL_S)
        assert held == latest.newest >= self._held
        assert self._puller.copy is not None
        self._puller.copy.verify()
        self._held = held


@dataclass(frozen=True)
class Fate:
    """How one attempt ends."""

    victim: int
    death: Death
    survivor_lives_s: float
    """How long the other rank is left alone with its dead peer."""
    outlived: bool
    """Whether the other rank is left to meet the next attempt."""


def fates(chances: random.Random, kills: int) -> Iterator[Fate]:
    """A third at any moment of a start, a third in the midst of steps, a third in the midst of what is done beside."""
    moments = list(MOMENTS)
    for number in range(kills):
        third, turn = number % 3, number // 3
        if third == 0:
            death = Death(delay_s=chances.uniform(0.0, 1.2), at_latest_s=_LATEST_S)
        elif third == 1:
            death = Death(
                moment=TRAINING, time=chances.randint(2, 7), delay_s=chances.uniform(0.0, 0.05), at_latest_s=_LATEST_S
            )
        else:
            moment = moments[turn % len(moments)]
            # Whoever claims moves the pointer too, so the first time would be that again.
            first = 2 if moment == "moving the pointer" else 1
            death = Death(
                moment=moment,
                time=first if moment in ("claiming", "resuming") else chances.randint(first, first + 1),
                delay_s=chances.uniform(0.0, 0.003),
                at_latest_s=_LATEST_S,
            )
        yield Fate(
            victim=0 if death.moment in RANK_0_ALONE else chances.randrange(RANKS),
            death=death,
            survivor_lives_s=chances.uniform(0.0, 0.2),
            outlived=chances.random() < 0.3,
        )


async def storm(site: Site, batch_server: StrictBatchServer, pool: Pool, *, kills: int) -> None:
    left_over: list[int] = []
    for attempt, fate in enumerate(fates(random.Random(SEED), kills)):
        batch_server.limit = batch_server.acknowledged + STEPS_PER_LIFE
        pids = site.start(attempt, victim=fate.victim, death=fate.death)
        ending = await site.ending(pids[fate.victim], timeout_s=_LIFE_S)
        assert ending == -signal.SIGKILL, f"attempt {attempt} ended by itself with {ending}\n{site.logs()}"
        for pid in left_over:
            site.end(pid)
        left_over = [pid for pid in pids if pid != pids[fate.victim]]
        if not fate.outlived:
            await asyncio.sleep(fate.survivor_lives_s)
            for pid in left_over:
                site.end(pid)
            left_over = []
            # With a rank left that goes on for a while, the newest version may be another one when it is pulled.
            await pool.pull()
    site.end_all()
    await pool.pull()


async def finish(site: Site, batch_server: StrictBatchServer, *, steps: int, attempt: int = 0) -> None:
    batch_server.limit = batch_server.last = steps
    # A policy that is finished ends without a checkpoint where the newest is more recent than this.
    write_job(site.folder, site.topology, every_steps=1)
    pids = site.start(attempt)
    codes = [await site.ending(pid, timeout_s=_WHOLE_RUN_S) for pid in pids]
    assert codes == [0] * RANKS, site.logs()


def surviving(taken: list[Note], *, steps: int) -> Counter[int]:
    """How often each row is in the final weights: of an attempt's steps those count that the next did not repeat."""
    resumed = {(note.attempt, note.rank): note.step for note in taken if isinstance(note, Resumed)}
    began = {attempt: step for (attempt, _), step in resumed.items()}
    for (attempt, _), step in resumed.items():
        assert began[attempt] == step, "the ranks of an attempt began at different steps"
    order = sorted(began)
    ends = {attempt: began[later] for attempt, later in pairwise(order)} | {order[-1]: steps}
    assert [began[attempt] for attempt in order] == sorted(began.values()), "a checkpoint was lost"
    rows: Counter[int] = Counter()
    for note in taken:
        if isinstance(note, TrainedOn) and note.step < ends[note.attempt]:
            rows.update(note.rows)
    return rows


def check_samples(site: Site, batch_server: StrictBatchServer, *, steps: int) -> None:
    assert batch_server.acknowledged == steps
    expected = batch_server.sequences[: steps * GROUP_SIZE]
    assert surviving(notes(site.folder), steps=steps) == Counter(expected)


async def test_ranks_killed_anywhere_change_nothing(
    template: TemplateProcess,
    tmp_path: Path,
    model: Path,
    nats: NatsSettings,
    objects: ObjectStoreSettings,
    sizes: Sizes,
) -> None:
    kills = sizes.rank_kills
    whole = Site(template, tmp_path / "whole", model, nats, objects)
    torn = Site(template, tmp_path / "torn", model, nats, objects)
    async with await Bus.connect(nats, name="test") as bus, torn.pool() as pool, whole.pool() as quiet_pool:
        batch_server = StrictBatchServer(bus, torn.topology, steps=MOST_STEPS)
        async with await batch_server.open():
            try:
                await storm(torn, batch_server, pool, kills=kills)
                steps = batch_server.acknowledged + STEPS_AFTERWARDS
                await finish(torn, batch_server, steps=steps, attempt=kills)
            finally:
                torn.end_all()
        await pool.pull()
        check_samples(torn, batch_server, steps=steps)
        quiet = StrictBatchServer(bus, whole.topology, steps=steps)
        async with await quiet.open():
            try:
                await finish(whole, quiet, steps=steps)
            finally:
                whole.end_all()
        check_samples(whole, quiet, steps=steps)
        await quiet_pool.pull()
    assert steps in pool.roots
    assert pool.roots == {version: root for version, root in quiet_pool.roots.items() if version in pool.roots}
    (expected, weights), (index, torn_weights) = await whole.result(), await torn.result()
    assert index.step == expected.step == steps
    assert index.optimizer_steps == expected.optimizer_steps
    assert torn_weights.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(torn_weights[name], tensor), name
    deaths = [note for note in notes(torn.folder) if isinstance(note, Dying)]
    amid = Counter(moment for death in deaths for moment in death.amid)
    sys.stderr.write(
        f"{len(deaths)} kills in {steps} steps, amid {dict(amid)}; {batch_server.superseded} requests too late\n"
    )
    assert len(deaths) == kills
    # Kills have hit checkpoints and publications, and steps were made between them, or this test has shown nothing.
    assert amid["writing its file"] + amid["committing"] >= kills // 10
    assert amid["publishing"] >= kills // 15
    if kills == FULL.rank_kills:
        assert {death.rank for death in deaths if "publishing" in death.amid} == set(range(RANKS))
    assert steps >= 2 * kills // 3
