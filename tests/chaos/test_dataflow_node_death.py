"""The node of a dataflow dies: nothing says so, its connections stay open, and NATS goes on sending it questions. Its
silence is noticed, another takes its place, and training goes on within ten seconds. The first one, should it come to
itself, finds that its time is over.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.dataflow.pod_process import NAME, DataflowProcess, prepare
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.dataflow.steady_rank import SteadyRank
from tests.support.polling import eventually
from tests.support.template_process import TemplateProcess, template_process
from trimtab.dataflow.audit.report import audit
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.publisher import MESSAGE_ID_HEADER
from trimtab.fabric.bus.reader import StreamReader
from trimtab.operator.job_watch import JobWatch

pytestmark = pytest.mark.slow

_GAP_S = 10.0
_SETTLED_S = 12.0
"""So long it is heard before its node dies: an operator knows by then how often it beats."""


@pytest.fixture
async def sim(tmp_path: Path) -> AsyncIterator[Simulation]:
    with EmbeddedNats(tmp_path / "nats") as server:
        async with simulation(server.settings, tmp_path) as made:
            yield made


@pytest.fixture(scope="module")
def template() -> Iterator[TemplateProcess]:
    with template_process(prepare) as template:
        yield template


async def _lateness(late_s: list[float]) -> None:
    """What the machine takes from everybody: it is no part of a gap that is promised on one that has time."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(0.1)
        late_s.append(time.monotonic() - began - 0.1)


async def _writers(sim: Simulation) -> list[str]:
    """Of the ledger's records, in order."""
    found: list[str] = []
    async with StreamReader(sim.bus, stream=sim.topology.ledger.name, headers_only=True) as reader:
        while not reader.caught_up:
            read = await reader.read(batch=512, wait_s=30.0)
            found += [delivery.headers[MESSAGE_ID_HEADER].split("-")[0] for delivery in read]
    return found


async def test_training_goes_on_within_ten_seconds_and_the_frozen_one_writes_nothing(
    sim: Simulation, template: TemplateProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = asyncio.Event()
    watch = JobWatch(sim.bus, sim.topology, ["solver"], on_silence=silent.set)
    watch.pulse.expect([(NAME, "the first")])
    rank, late_s = SteadyRank(sim), list[float]()
    first = DataflowProcess(sim, template, tmp_path / "first.log")
    second: DataflowProcess | None = None
    try:
        async with running(watch.run(), sim.work(), rank.train(), _lateness(late_s)):
            await eventually(lambda: rank.steps >= 3, timeout_s=30.0, ended=first.ended)
            await asyncio.sleep(_SETTLED_S)
            assert not silent.is_set()
            late_s.clear()
            first.freeze()
            frozen_at = time.monotonic()
            await asyncio.wait_for(silent.wait(), 60.0)
            assert watch.report(window=5).silences.ended == {NAME}
            noticed_s = time.monotonic() - frozen_at
            second = DataflowProcess(sim, template, tmp_path / "second.log")
            watch.pulse.expect([(NAME, "the second")])
            before = rank.steps
            await eventually(lambda: rank.steps >= before + 3, timeout_s=30.0, ended=second.ended)
            gap_s, slow_s = rank.longest_gap_s(since=frozen_at), sum(late_s)
            writers = await _writers(sim)
            first.go_on()
            await eventually(lambda: first.ended() is not None, timeout_s=10.0)
            before = rank.steps
            await eventually(lambda: rank.steps >= before + 3, timeout_s=30.0, ended=second.ended)
            assert second.ended() is None
    finally:
        first.kill()
        if second is not None:
            second.kill()
    with capsys.disabled():
        sys.stdout.write(f"\nnoticed after {noticed_s:.1f} s, a gap of {gap_s:.1f} s, {slow_s:.1f} s late\n")
    assert gap_s < _GAP_S + slow_s
    assert "AnotherWriter" in first.log
    last = writers[-1]
    took_over = writers.index(last)
    assert took_over > 0
    written = await _writers(sim)
    assert set(written[took_over:]) == {last}, "the first one has written after the second began"
    report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
    assert report.violations == []
    assert report.steps["solver"] >= rank.steps - 1
