"""`trimtab top` on a real NATS server: what pods, dataflow and trainer said last, in one table."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from trimtab.cli.top import top
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.names import escape_token
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.weights import WeightPointer

Top = Callable[..., Result]
NOW = time.time()


def worker(name: str, *, version: int, **fields: object) -> MemberHeartbeat:
    return MemberHeartbeat(
        member_id=name, job="j", role=Role.ROLLOUT, pool="pool", versions={"solver": version},
        started_at=NOW, sent_at=NOW, **({"state": State.READY, "engine": "builtin"} | fields),  # type: ignore[arg-type]
    )  # fmt: skip


MEMBERS = [
    worker("pool-0", version=7, in_flight=12, capacity=32, samples_per_second=4.5, tokens_per_second=812.0),
    worker("pool-1", version=5, engine="e\x1b[2J", in_flight=3, capacity=32, allowance=4, failures={"engine": 2}),
    MemberHeartbeat(
        member_id="solver-0", job="j", role=Role.TRAINER, state=State.READY, versions={"solver": 8},
        tokens_per_second=2048.0, started_at=NOW, sent_at=NOW,
    ),
]  # fmt: skip
PROGRESS = StepProgress(
    job="j", policy="solver", step=7, reward=0.625, staleness=1.5, max_staleness=4, wait_fraction=0.31, samples=512,
    buffered=96, running=128, dropped=0, at=NOW,
)  # fmt: skip
POINTER = WeightPointer(
    job="j", policy="solver", version=7, epoch=1, manifest_key="m", manifest_digest="blake3:" + "0" * 64,
    size_bytes=1, published_at=NOW,
)  # fmt: skip


@pytest.fixture
def top_of(nats_settings: NatsSettings) -> Top:
    assert nats_settings.password is not None
    environment = {
        "TRIMTAB_NATS__SERVERS": ",".join(nats_settings.servers),
        "TRIMTAB_NATS__USER": nats_settings.user,
        "TRIMTAB_NATS__PASSWORD": nats_settings.password.get_secret_value(),
        "TRIMTAB_NATS__REQUEST_TIMEOUT_S": "60",
    }
    return lambda topology, *arguments: CliRunner().invoke(
        top, [topology.job, "--namespace", topology.namespace, *arguments], env=environment
    )


async def _fill(settings: NatsSettings, topology: JobTopology) -> None:
    async with await Bus.connect(settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=60.0)
        members, balance = KeyValue(bus, topology.members), KeyValue(bus, topology.balance)
        for one in MEMBERS:
            await members.put(escape_token(one.member_id), encode(one), deadline_s=60.0)
        await balance.put(topology.progress_key("solver"), encode(PROGRESS), deadline_s=60.0)
        await KeyValue(bus, topology.weights).put("solver", encode(POINTER), deadline_s=60.0)
        for number in range(3):
            await publish(bus, topology.task_subject("q"), b"task", message_id=f"t{number}")


@pytest.fixture
def filled(nats_settings: NatsSettings) -> JobTopology:
    # Heartbeats last as long as a busy machine may take to look at them.
    topology = JobTopology("default", f"job-{uuid4().hex[:8]}", member_ttl_s=300.0)
    asyncio.run(_fill(nats_settings, topology))
    return topology


def test_the_pods_of_a_job_and_what_they_do(filled: JobTopology, top_of: Top) -> None:
    said = top_of(filled)
    assert said.exit_code == 0, said.output
    rows = {line.split()[0]: line for line in said.output.splitlines() if line.strip()}
    assert "3 pods · 3 tasks given out" in said.output
    assert rows["solver"].split()[1:4] == ["8", "0.625", "7"]
    assert "31%" in rows["solver"]
    assert "1.5, at most 4" in rows["solver"]
    assert "12/32" in rows["pool-0"]
    assert "812" in rows["pool-0"]
    behind = next(line for line in said.output.splitlines() if line.startswith("pool-1"))
    assert "3/4 (32)" in behind
    assert "5 -2" in behind
    assert "\x1b" not in said.output, "a pod says its engine itself"
    assert "2,048" in rows["solver-0"]


def test_programs_are_told_the_same(filled: JobTopology, top_of: Top) -> None:
    found = json.loads(top_of(filled, "--json").output)
    assert found["queued"] == 3
    assert [one["member"] for one in found["members"]] == ["solver-0", "pool-0", "pool-1"]
    assert found["policies"][0]["buffered"] == 96


def test_a_job_that_is_not_there_is_named(top_of: Top) -> None:
    said = top_of(JobTopology("default", "nobody"))
    assert said.exit_code == 1
    assert "there is no job nobody in namespace default" in said.output
