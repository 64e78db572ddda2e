"""The probe endpoints over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from tests.support.polling import within
from trimtab.embedded.ports import free_ports
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.probes import Probes
from trimtab.fabric.redaction import Redactor
from trimtab.fabric.settings import ProbeSettings

SETTINGS = ProbeSettings(host="127.0.0.1", port=0, max_silence_s=30.0)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def probes(clock: Clock, metrics: Metrics) -> AsyncIterator[Probes]:
    redactor = Redactor()
    redactor.register(["hunter2-and-more"])
    async with Probes(SETTINGS, metrics, redactor, clock=clock) as running:
        yield running


async def get(probes: Probes, path: str) -> tuple[int, str, str]:
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://127.0.0.1:{probes.port}{path}") as response,
    ):
        return response.status, await response.text(), response.headers["Content-Type"]


async def test_metrics_are_those_of_this_process_and_prefixed(probes: Probes, metrics: Metrics) -> None:
    metrics.counter("tasks", "Tasks pulled.", ["policy"]).labels("solver").inc(3)
    metrics.gauge("in_flight", "Tasks running.").set(2)
    metrics.histogram("step_seconds", "Time of a step.", buckets=(0.1, 1.0)).observe(0.5)
    status, text, content_type = await get(probes, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name for name in families if not name.startswith("process_")} == {
        "trimtab_tasks",
        "trimtab_tasks_created",
        "trimtab_in_flight",
        "trimtab_step_seconds",
        "trimtab_step_seconds_created",
    }
    assert families["trimtab_tasks"].samples[0].value == 3.0
    assert not [family for family in REGISTRY.collect() if family.name.startswith("trimtab_")]


async def test_two_processes_worth_of_metrics_do_not_collide() -> None:
    for metrics in (Metrics(), Metrics()):
        metrics.counter("tasks", "Tasks pulled.").inc()


async def test_liveness_follows_the_beat(probes: Probes, clock: Clock) -> None:
    assert (await get(probes, "/healthz"))[0] == 200
    clock.now += 31
    status, text, _ = await get(probes, "/healthz")
    assert status == 503
    assert "silent for 31.0 s, allowed are 30 s" in text
    probes.beat()
    assert (await get(probes, "/healthz"))[:2] == (200, "ok\n")


async def test_readiness_says_which_check_fails_and_why(probes: Probes) -> None:
    assert (await get(probes, "/readyz"))[:2] == (200, "ok\n")
    reasons: dict[str, str | None] = {"nats": "not connected to nats://u:hunter2-and-more@a", "weights": None}
    for name in reasons:
        probes.add_check(name, lambda name=name: reasons[name])  # type: ignore[misc]
    status, text, _ = await get(probes, "/readyz")
    assert status == 503
    assert text == "nats: not connected to nats://***@a\nweights: ok\n"
    reasons["nats"] = None
    assert (await get(probes, "/readyz"))[:2] == (200, "nats: ok\nweights: ok\n")


async def test_a_check_that_fails_itself_is_not_ready(probes: Probes) -> None:
    def broken() -> str | None:
        raise RuntimeError("hunter2-and-more")

    probes.add_check("broken", broken)
    status, text, _ = await get(probes, "/readyz")
    assert status == 500
    assert "hunter2" not in text


async def test_other_paths_and_methods_are_refused(probes: Probes) -> None:
    assert (await get(probes, "/"))[0] == 404
    async with aiohttp.ClientSession() as session, session.post(f"http://127.0.0.1:{probes.port}/readyz") as response:
        assert response.status == 405


async def test_stopping_frees_the_port_and_is_bounded_under_open_connections(clock: Clock, metrics: Metrics) -> None:
    (port,) = free_ports(1)
    settings = SETTINGS.model_copy(update={"port": port})
    probes = Probes(settings, metrics, Redactor(), clock=clock)
    await probes.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
    await writer.drain()
    await within(probes.stop(), 10)
    await probes.stop()
    assert await within(reader.read(), 10) is not None
    writer.close()
    again = Probes(settings, metrics, Redactor(), clock=clock)
    async with again:
        assert again.port == port
    with pytest.raises(RuntimeError, match="start"):
        _ = again.port


async def test_a_port_in_use_is_an_error_at_start(probes: Probes, clock: Clock, metrics: Metrics) -> None:
    other = Probes(SETTINGS.model_copy(update={"port": probes.port}), metrics, Redactor(), clock=clock)
    with pytest.raises(OSError, match="address already in use"):
        await other.start()
