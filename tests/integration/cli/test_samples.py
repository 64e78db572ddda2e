"""`trimtab samples` on a real NATS server: rows of a stream, the steps of a ledger, a row in object storage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from tests.support.cli.rows import ESCAPE, conversation, make_tokenizer
from tests.support.cli.stored import fill, nats_environment
from trimtab.cli.samples import samples
from trimtab.cli.samples.choice import Wanted
from trimtab.cli.ui.lookup import Lookup
from trimtab.cli.ui.run import Place
from trimtab.dataflow.ledger.records import StepGranted
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.sample_archive import ArchivedRow, part_key, written_parts
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.spans import Producer
from trimtab.fabric.wire.trajectory import Finish, Scored, Trajectory

Samples = Callable[..., Result]


def row(number: int, *, reward: float) -> Trajectory:
    return conversation(
        trajectory_id=f"g-{number}.0.0",
        group_id=f"g-{number}/solver",
        task_id=f"g-{number}",
        prompt_id=f"prompt-{number}",
        group_index=0,
        group_size=1,
        outcome=Scored(reward=reward, finish=Finish.STOP),
    )


HOSTILE = conversation(
    ((Producer.PROMPT, "hello", None), (Producer.MODEL, f"{ESCAPE}~ four", 3)),
    trajectory_id="g-9.0.0",
    policy="judge",
    role="judge",
    turns=1,
)
ROWS = [row(0, reward=0.0), row(1, reward=1.0), row(2, reward=0.5)]
GRANTS = [StepGranted(policy="solver", step=n, groups=(f"g-{n}/solver",), granted_at=1.0) for n in range(2)]


@pytest.fixture
def samples_of(nats_settings: NatsSettings, tmp_path: Path) -> Samples:
    make_tokenizer(tmp_path / "tokenizer")
    environment = nats_environment(nats_settings)

    def run(topology: JobTopology, *arguments: str, **more: str) -> Result:
        command = [topology.job, "--namespace", topology.namespace, "--tokenizer", str(tmp_path / "tokenizer")]
        return CliRunner().invoke(samples, [*command, *arguments], env=environment | more)

    return run


@pytest.fixture
def filled(nats_settings: NatsSettings) -> JobTopology:
    topology = JobTopology("default", f"job-{uuid4().hex[:8]}")
    asyncio.run(fill(nats_settings, topology, [*ROWS, HOSTILE], ledger=GRANTS))
    return topology


def test_the_rows_of_a_step_are_shown(filled: JobTopology, samples_of: Samples) -> None:
    said = samples_of(filled, "--step", "2")
    assert said.exit_code == 0, said.output
    assert "prompt-1" in said.output
    assert "reward 1 · step 2" in said.output
    assert "prompt-0" not in said.output
    gone = samples_of(filled, "--step", "40")
    assert gone.exit_code == 1
    assert "there are those of steps 1 to 2" in gone.output


def test_best_and_worst_of_a_policy(filled: JobTopology, samples_of: Samples) -> None:
    for order, prompt in (("--best", "prompt-1"), ("--worst", "prompt-0")):
        said = samples_of(filled, order, "--limit", "1", "--policy", "solver")
        assert prompt in said.output
        assert said.output.count("of prompt") == 1


def test_answers_of_an_evaluation_are_shown_while_the_stream_has_them(
    nats_settings: NatsSettings, samples_of: Samples, tmp_path: Path
) -> None:
    topology = JobTopology("default", f"job-{uuid4().hex[:8]}")
    answer = replace(ROWS[1], purpose=Purpose.EVALUATION, benchmark="held-out")
    asyncio.run(fill(nats_settings, topology, [ROWS[0], answer], ledger=GRANTS))
    said = samples_of(topology, "--benchmark", "held-out")
    assert said.exit_code == 0, said.output
    assert "prompt-1" in said.output
    assert "prompt-0" not in said.output
    assert "hello there" in said.output
    written = samples_of(topology, "--benchmark", "held-out", "--output", str(tmp_path / "answers.jsonl"))
    assert "has 1 rows" in written.output
    assert json.loads((tmp_path / "answers.jsonl").read_text())["benchmark"] == "held-out"

    async def let_go() -> None:
        async with await Bus.connect(nats_settings, name="test") as bus:
            await api_call(bus, f"STREAM.PURGE.{topology.trajectories.name}", {"keep": 0}, deadline_s=60.0)

    asyncio.run(let_go())
    gone = samples_of(topology, "--benchmark", "held-out")
    assert gone.exit_code == 1
    assert "no row of the benchmark held-out in the stream, and data.archive has none" in gone.output


def test_nothing_that_a_model_said_reaches_the_terminal_as_a_command(filled: JobTopology, samples_of: Samples) -> None:
    said = samples_of(filled, "--policy", "judge")
    assert said.exit_code == 0, said.output
    assert r"\x1b]0;owned\x07 four" in said.output
    assert "\x1b" not in said.output


def test_all_rows_go_into_a_file(filled: JobTopology, samples_of: Samples, tmp_path: Path) -> None:
    said = samples_of(filled, "--output", str(tmp_path / "rows.jsonl"))
    assert said.exit_code == 0, said.output
    assert "has 4 rows" in said.output
    found = {one["prompt_id"]: one for one in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())}
    assert [found[f"prompt-{number}"]["step"] for number in range(3)] == [1, 2, None]


def test_a_job_that_is_not_there_is_named(samples_of: Samples) -> None:
    said = samples_of(JobTopology("default", "nobody"))
    assert said.exit_code == 1
    assert "there is no job nobody in namespace default" in said.output


def environment_of(settings: ObjectStoreSettings) -> dict[str, str]:
    assert settings.access_key_id is not None
    assert settings.secret_access_key is not None
    return {
        "TRIMTAB_OBJECT_STORE__BUCKET": settings.bucket,
        "TRIMTAB_OBJECT_STORE__PREFIX": settings.prefix,
        "TRIMTAB_OBJECT_STORE__ENDPOINT_URL": str(settings.endpoint_url),
        "TRIMTAB_OBJECT_STORE__ACCESS_KEY_ID": settings.access_key_id.get_secret_value(),
        "TRIMTAB_OBJECT_STORE__SECRET_ACCESS_KEY": settings.secret_access_key.get_secret_value(),
    }


def test_what_the_stream_has_let_go_of_comes_from_the_archive(
    filled: JobTopology,
    nats_settings: NatsSettings,
    object_store_settings: ObjectStoreSettings,
    samples_of: Samples,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = object_store_settings.model_copy(update={"prefix": filled.job})

    async def archive_and_let_go() -> None:
        async with ObjectStore(settings) as store:
            for step, one in enumerate(ROWS[:2]):
                (body,) = written_parts([ArchivedRow(step=step, sequence=step + 1, row=one)])
                key = part_key("solver", step=step, rank=0, part=0)
                await store.put(key, body, deadline_s=60.0)
            await store.put(part_key("solver", step=7, rank=0, part=0), b"junk", deadline_s=60.0)
        async with await Bus.connect(nats_settings, name="test") as bus:
            purge = {"seq": 2}  # the first row goes, and all others stay
            await api_call(bus, f"STREAM.PURGE.{filled.trajectories.name}", purge, deadline_s=60.0)

    def shown(*arguments: str) -> Result:
        return samples_of(filled, *arguments, **environment_of(settings))

    asyncio.run(archive_and_let_go())
    first = shown("--step", "1")
    assert first.exit_code == 0, first.output
    assert "prompt-0" in first.output
    assert "reward 0 · step 1" in first.output
    assert "hello there" in first.output
    worst = shown("--worst", "--policy", "solver", "--limit", "2")
    assert worst.output.index("prompt-0") < worst.output.index("prompt-2")
    assert "cannot be shown: " in worst.output, "the one that no trainer wrote"
    said = shown("--output", str(tmp_path / "rows.jsonl"))
    assert "has 4 rows" in said.output, "what is in both is there once"
    assert "there are those of steps 1 to 8" in shown("--step", "40").output
    assert "prompt-0" not in samples_of(filled).output, "without a store the stream is all there is"

    for name, value in (nats_environment(nats_settings) | environment_of(settings)).items():
        monkeypatch.setenv(name, value)
    page = Lookup(Place(topology=filled, state_folder=None), tokenizer=tmp_path / "tokenizer")
    (sample,) = page.samples(Wanted(step=1), limit=10).samples
    assert (sample.prompt, sample.step) == ("prompt-0", 1)
    assert "".join(text for text, _ in page.spoken(sample.sequence).texts[1].marks) == " four<|end|>"


def test_a_row_that_no_message_could_carry_is_fetched_from_object_storage(
    nats_settings: NatsSettings, object_store_settings: ObjectStoreSettings, samples_of: Samples
) -> None:
    """Another whose object is gone is named, and the rest is shown."""
    topology = JobTopology("default", f"job-{uuid4().hex[:8]}")
    settings = object_store_settings.model_copy(update={"prefix": topology.job})

    async def claimed() -> bytes:
        async with ObjectStore(settings) as store:
            return encode(await RowClaims(store).deposit(ROWS[0], encode(ROWS[0])))

    async def gone() -> bytes:
        async with ObjectStore(settings) as store:
            claim = await RowClaims(store).deposit(ROWS[1], encode(ROWS[1]))
            await store.delete(claim.object_key, deadline_s=60.0)
            return encode(claim)

    rows = [(ROWS[0], asyncio.run(claimed())), (ROWS[1], asyncio.run(gone()))]
    asyncio.run(fill(nats_settings, topology, rows, ledger=GRANTS))
    said = samples_of(topology, **environment_of(settings))
    assert said.exit_code == 0, said.output
    assert "hello there" in said.output
    assert "row 2 cannot be shown" in said.output
