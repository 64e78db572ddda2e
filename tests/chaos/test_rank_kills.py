"""SIGKILLs of trainer ranks at random moments, in the midst of checkpoints and publications too: training ends
where it would have, with the same weights bit for bit, and every sample is in them once. What pools find after each of
them is a whole version, the last or the next, as a trainer that lives would have published it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

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
    Resumed,
    TrainedOn,
    notes,
    prepare,
)
from tests.support.trainer.killed_site import (
    MOST_STEPS,
    STEPS_AFTERWARDS,
    STEPS_PER_LIFE,
    Pool,
    Site,
    write_job,
)
from tests.support.trainer.strict_batch_server import StrictBatchServer
from tests.support.weights.small_blocks import cut_small_blocks
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.weights import layout

SEED = 20261115
_LATEST_S = 4.0
_LIFE_S = 60.0
_WHOLE_RUN_S = 120.0


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


@pytest.mark.slow
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
                steps = max(batch_server.acknowledged, await torn.durable_step()) + STEPS_AFTERWARDS
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
