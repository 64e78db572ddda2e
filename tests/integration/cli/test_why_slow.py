"""`trimtab why-slow` on a real NATS server, and its traces at a collector through OpenTelemetry's own libraries."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from tests.support.cli.rows import conversation
from trimtab.cli.why_slow import why_slow
from trimtab.dataflow.ledger.records import StepGranted
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.header import headers
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.trajectory import Finish, Phase, Scored, Trajectory

LIBRARIES = ("opentelemetry-sdk==1.39.1", "opentelemetry-exporter-otlp-proto-http==1.39.1")
COUNT = """
import sys
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Request
request = Request.FromString(open(sys.argv[1], "rb").read())
spans = [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]
print(sorted((span.name, span.trace_id.hex(), span.end_time_unix_nano - span.start_time_unix_nano) for span in spans))
"""


def row(number: int) -> Trajectory:
    return conversation(
        trajectory_id=f"g-{number}.0.0", group_id=f"g-{number}", task_id=f"g-{number}", group_index=0, group_size=1,
        outcome=Scored(reward=1.0, finish=Finish.STOP), queued_at=99.0, started_at=100.0, finished_at=104.0,
        phases=(Phase("prefill", 0.0, 1.0), Phase("decode", 1.0, 2.0)),
    )  # fmt: skip


TRAINER = MemberHeartbeat(
    member_id="solver-0", job="j", role=Role.TRAINER, state=State.READY, versions={"solver": 3}, started_at=1.0,
    sent_at=2.0, measures={"seconds_step": 10.0, "seconds_wait": 8.0, "seconds_compute": 2.0},
)  # fmt: skip


async def _fill(settings: NatsSettings, topology: JobTopology) -> None:
    async with await Bus.connect(settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=60.0)
        for number in range(2):
            one = row(number)
            subject = topology.trajectory_subject(one.policy)
            await publish(bus, subject, encode(one), message_id=one.message_id, headers=headers(one))
        granted = StepGranted(policy="solver", step=0, groups=("g-0",), granted_at=109.0)
        await publish(bus, topology.ledger_subject, encode(granted), message_id="r0")
        await KeyValue(bus, topology.members).put("solver-0", encode(TRAINER), deadline_s=60.0)


@pytest.fixture
def filled(nats_settings: NatsSettings) -> JobTopology:
    topology = JobTopology("default", f"job-{uuid4().hex[:8]}", member_ttl_s=300.0)
    asyncio.run(_fill(nats_settings, topology))
    return topology


@pytest.fixture
def environment(nats_settings: NatsSettings) -> dict[str, str]:
    assert nats_settings.password is not None
    assert nats_settings.user is not None
    return {
        "TRIMTAB_NATS__SERVERS": ",".join(nats_settings.servers),
        "TRIMTAB_NATS__USER": nats_settings.user,
        "TRIMTAB_NATS__PASSWORD": nats_settings.password.get_secret_value(),
        "TRIMTAB_NATS__REQUEST_TIMEOUT_S": "60",
    }


def test_where_the_time_goes_and_what_that_comes_down_to(filled: JobTopology, environment: dict[str, str]) -> None:
    said = CliRunner().invoke(why_slow, [filled.job], env=environment)
    assert said.exit_code == 0, said.output
    rows = {line.split()[0]: line.split() for line in said.output.splitlines() if line.strip()}
    assert "a sample of solver: 5.00 s from its task to its reward, mean of 2" in said.output
    assert rows["queue"][1] == "1.000"
    assert rows["decode"][1] == "2.000"
    assert rows["ready"][1] == "5.000", "of the one that was trained"
    assert rows["wait"][1:3] == ["8.000", "80%"]
    assert "the trainer waits for samples 80% of its time; most of an episode is decode" in said.output
    told = json.loads(CliRunner().invoke(why_slow, [filled.job, "--json"], env=environment).stdout)
    assert told["samples"][0]["samples"] == 2


def test_without_the_libraries_it_says_what_to_install(filled: JobTopology, environment: dict[str, str]) -> None:
    said = CliRunner().invoke(why_slow, [filled.job, "--otlp", "http://127.0.0.1:1"], env=environment)
    assert said.exit_code == 1
    assert "pip install opentelemetry-sdk" in said.output


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.bodies: list[bytes] = []


class _Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") is None:
            self.server.bodies.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.slow
def test_episodes_are_traces_at_a_collector_and_the_same_ones_when_sent_again(
    filled: JobTopology, environment: dict[str, str], collector: Collector, tmp_path: Path
) -> None:
    libraries = tmp_path / "libraries"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(libraries), *LIBRARIES]
    subprocess.run(install, check=True, timeout=300)
    beside = os.environ | environment | {"PYTHONPATH": str(libraries)}
    send = [sys.executable, "-m", "trimtab.cli.main", "why-slow", filled.job, "--otlp"]
    url = f"http://127.0.0.1:{collector.server_port}"
    for _ in range(2):
        sent = subprocess.run([*send, url], env=beside, capture_output=True, text=True, timeout=300)
        assert sent.returncode == 0, sent.stderr
        assert f"2 episodes sent to {url}" in sent.stderr
    told = []
    for number, body in enumerate(collector.bodies):
        (file := tmp_path / f"{number}.bin").write_bytes(body)
        count = [sys.executable, "-c", COUNT, str(file)]
        told.append(subprocess.run(count, env=beside, capture_output=True, text=True, check=True, timeout=300).stdout)
    assert len(told) == 2
    assert told[0] == told[1]
    assert told[0].count("'sample'") == 2
    assert told[0].count("'decode'") == 2
    assert told[0].count("'ready'") == 1
    refused = subprocess.run([*send, "http://127.0.0.1:1"], env=beside, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 1
    assert "the collector did not take the traces" in refused.stderr
