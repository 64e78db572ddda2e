"""Prompts from a real object store, and a real dataflow that issues them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pydantic import SecretStr
from structlog.testing import capture_logs

from tests.support.dataflow.books import BATCH, GROUP
from tests.support.dataflow.jobs import job
from tests.support.dataflow.prompt_sources import (
    ids_of,
    prompts_of,
    write_dataset_dict,
    write_jsonl,
    write_parquet,
)
from tests.support.dataflow.simulation import JOURNAL_KEY, Simulation, running, simulation
from tests.support.polling import patiently
from trimtab.dataflow.__main__ import DataflowPodSettings
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger.task_ids import parse_group_id
from trimtab.dataflow.prompts.order import PromptOrder
from trimtab.dataflow.prompts.prompt import PromptSourceError
from trimtab.dataflow.prompts.sources import read_prompts
from trimtab.dataflow.service import run_dataflow
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreUnavailable
from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.fabric.settings import (
    LedgerSettings,
    NatsSettings,
    ObjectStoreSettings,
    PodSettings,
    ProbeSettings,
    environment_for,
)


class Bucket:
    """A prefix of a test's own in the shared bucket, filled from a folder."""

    def __init__(self, settings: ObjectStoreSettings, folder: Path) -> None:
        # Prompts are found by their uri alone, whatever prefix the job has for its own objects.
        self.settings = settings.model_copy(update={"prefix": "a/job"})
        self.folder = folder / "bucket"
        self.scratch = folder / "scratch"
        self._prefix = uuid.uuid4().hex
        self._store = ObjectStore(settings.model_copy(update={"prefix": self._prefix}))

    async def put_all(self) -> None:
        for file in sorted(self.folder.rglob("*")):
            if file.is_file():
                await self._store.put(str(file.relative_to(self.folder)), file.read_bytes())

    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    def uri(self, key: str) -> str:
        return f"s3://{self.settings.bucket}/{self._prefix}/{key}"

    async def order(self, *sources: dict[str, Any], **data: Any) -> PromptOrder:
        desired = job(data={"prompts": list(sources), "shuffle": False, **data})
        return await read_prompts(desired, folder=self.folder, object_store=self.settings, scratch=self.scratch)

    async def close(self) -> None:
        await self._store.close()


@pytest.fixture
async def bucket(object_store_settings: ObjectStoreSettings, tmp_path: Path) -> AsyncIterator[Bucket]:
    made = Bucket(object_store_settings, tmp_path)
    yield made
    await made.close()


async def test_objects_and_prefixes_are_read_like_files_and_folders(bucket: Bucket) -> None:
    write_jsonl(bucket.folder / "one.jsonl", ["a", "b"])
    write_jsonl(bucket.folder / "many/2.jsonl", ["e"])
    write_jsonl(bucket.folder / "many/1.jsonl", ["c", "d"])
    write_jsonl(bucket.folder / "many/below/3.jsonl", ["never"])
    write_jsonl(bucket.folder / "many-more/1.jsonl", ["never"])
    write_parquet(bucket.folder / "rows.parquet", {"prompt": ["f"]})
    write_dataset_dict(
        bucket.folder / "set", {"train": [pa.table({"prompt": ["g", "h"]})], "test": [pa.table({"prompt": ["never"]})]}
    )
    await bucket.put_all()
    for source, ids, prompts in (
        ({"jsonl": {"uri": bucket.uri("one.jsonl")}}, ["train-1", "train-2"], "ab"),
        ({"jsonl": {"uri": bucket.uri("many")}}, ["train-1-1", "train-1-2", "train-2-1"], "cde"),
        ({"jsonl": {"uri": bucket.uri("many/")}}, ["train-1-1", "train-1-2", "train-2-1"], "cde"),
        ({"parquet": {"uri": bucket.uri("rows.parquet")}}, ["train-1"], "f"),
        ({"huggingFace": {"uri": bucket.uri("set")}}, ["train-1", "train-2"], "gh"),
    ):
        order = await bucket.order({"name": "train", **source}, epochs=1)
        assert order.total == len(ids)
        assert (ids_of(order, len(ids)), prompts_of(order, len(ids))) == (ids, list(prompts))


async def test_what_was_fetched_is_kept_and_what_changed_is_fetched_again(bucket: Bucket) -> None:
    source = {"name": "train", "jsonl": {"uri": bucket.uri("many")}}

    async def read() -> tuple[str, int]:
        """All prompts, and how many files had to be fetched."""
        with capture_logs() as logs:
            order = await bucket.order(source, epochs=1)
        (line,) = [log for log in logs if log["event"] == "fetching_objects"]
        assert order.total is not None
        return "".join(prompts_of(order, order.total)), line["files"]

    for name in "abc":
        write_jsonl(bucket.folder / f"many/{name}.jsonl", [name])
    await bucket.put_all()
    assert await read() == ("abc", 3)
    assert await read() == ("abc", 0)
    await bucket.delete("many/b.jsonl")
    write_jsonl(bucket.folder / "many/a.jsonl", ["x"])
    (bucket.folder / "many/b.jsonl").unlink()
    (bucket.folder / "many/empty.jsonl").write_bytes(b"")
    await bucket.put_all()
    text, fetched = await read()
    assert text == "xc"
    assert fetched in (2, 3), "the store may give the rewritten but equal c.jsonl another ETag"
    assert not list(bucket.scratch.rglob("b.jsonl*"))


async def test_what_cannot_be_fetched_is_named(bucket: Bucket) -> None:
    uri = bucket.uri("gone.jsonl")
    with pytest.raises(PromptSourceError, match=rf"data.prompts\[train\]: there is neither {uri} nor a file of the so"):
        await bucket.order({"name": "train", "jsonl": {"uri": uri}})
    with pytest.raises(
        PromptSourceError, match=r"data.prompts\[train\]: s3://no-such-bucket/x cannot be read: .*NoSuch"
    ):
        await bucket.order({"name": "train", "jsonl": {"uri": "s3://no-such-bucket/x"}})
    bucket.settings = bucket.settings.model_copy(update={"secret_access_key": SecretStr("wrong")})
    with pytest.raises(PromptSourceError, match=r"data.prompts\[train\]: s3://.* cannot be read: .*403"):
        await bucket.order({"name": "train", "jsonl": {"uri": uri}})


async def test_a_store_that_is_away_is_not_the_manifests_fault(bucket: Bucket) -> None:
    """The pod ends and comes back, instead of failing the job."""
    bucket.settings = bucket.settings.model_copy(update={"endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(StoreUnavailable):
        await bucket.order({"name": "train", "jsonl": {"uri": bucket.uri("x.jsonl")}})


@asynccontextmanager
async def service(sim: Simulation, bucket: Bucket) -> AsyncIterator[None]:
    bus = await Bus.connect(sim.settings, name="dataflow")
    task = run_dataflow(
        sim.job,
        bus,
        sim.topology,
        folder=sim.folder,
        member_id="dataflow-0",
        incarnation=uuid.uuid4().hex,
        journal_key=JOURNAL_KEY,
        clock=time.time,
        metrics=Metrics(),
        object_store=bucket.settings,
        scratch=bucket.scratch,
    )
    async with running(task):
        yield
    await bus.close()


async def test_a_restarted_dataflow_goes_on_in_the_mix_where_it_stopped(
    nats_settings: NatsSettings, bucket: Bucket, tmp_path: Path
) -> None:
    write_parquet(bucket.folder / "rows.parquet", {"prompt": [f"r{number}" for number in range(9)]})
    await bucket.put_all()
    write_jsonl(tmp_path / "lines.jsonl", [f"l{number}" for number in range(20)])
    sources = [
        {"name": "lines", "jsonl": {"uri": "lines.jsonl"}, "weight": 2},
        {"name": "rows", "parquet": {"uri": bucket.uri("rows.parquet")}},
    ]
    seen: dict[int, set[str]] = {}
    async with simulation(nats_settings, tmp_path, data={"prompts": sources, "epochs": 1, "seed": 7}) as sim:
        expected = await read_prompts(sim.job, folder=tmp_path, object_store=bucket.settings, scratch=bucket.scratch)
        assert expected.total is not None
        assert expected.total in range(28, 31)
        async with running(sim.work()), patiently(60.0):
            for first in (0, 6, 12):
                async with service(sim, bucket):
                    end = await sim.train(steps=range(first, first + 6), attempt=first, seen=seen)
                    if end < first + 6:
                        break
        headers = (await read_streams(sim.bus, sim.topology)).headers
    assert end == expected.total * GROUP // BATCH
    issued = {}
    for header in headers:
        parsed = parse_group_id(header.group_id)
        assert parsed is not None
        issued[parsed[0]] = header.prompt_id
    assert issued == dict(enumerate(ids_of(expected, expected.total)))


async def test_a_prompt_that_cannot_be_made_ends_the_pod_for_good(
    nats_settings: NatsSettings, object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(
        "class Late:\n"
        "    def prompt(self, number):\n"
        "        return {'prompt': 'x'} if number < 3 else {'prompt': 1 // 0}\n"
    )
    source = {"name": "made", "generator": {"entrypoint": "late:Late"}}
    desired = job(f"j{uuid.uuid4().hex[:10]}", data={"prompts": [source]})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(desired.model_dump(mode="json", exclude_unset=True)))
    settings = DataflowPodSettings(
        pod=PodSettings(namespace="default", job=desired.metadata.name, role="dataflow", name="dataflow-0"),
        nats=nats_settings,
        object_store=object_store_settings,
        ledger=LedgerSettings(key=SecretStr("k" * 32)),
        probes=ProbeSettings(host="127.0.0.1", port=0),
        job_file=tmp_path / "job.yaml",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "trimtab.dataflow",
        env={"PATH": os.environ["PATH"], **environment_for(settings)},
        stderr=asyncio.subprocess.PIPE,
    )
    async with patiently(30.0):
        _, errors = await process.communicate()
    assert process.returncode == EXIT_MISCONFIGURED, errors.decode()
    assert b"late:Late, prompt(3) raised ZeroDivisionError" in errors
