"""Somebody sets the clock of the dataflow's machine while a job trains, by hours to either side: that is no outage,
neither to the dataflow itself nor to an operator that listens to its signs of life.
"""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

from tests.support.dataflow.simulation import running, simulation
from tests.support.dataflow.steady_rank import SteadyRank
from tests.support.polling import eventually
from trimtab.dataflow.audit.report import audit
from trimtab.fabric.settings import NatsSettings
from trimtab.operator.job_watch import JobWatch

_HOUR_S = 3600.0
_JUMPS_S = (_HOUR_S, -2 * _HOUR_S, 24 * _HOUR_S, -48 * _HOUR_S, 0.0)


async def test_a_clock_that_jumps_is_no_outage_and_stops_no_training(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    silent, ahead_s = asyncio.Event(), 0.0
    async with simulation(nats_settings, tmp_path, maxSteps=1_000_000) as sim:
        sim.clock = lambda: time.time() + ahead_s
        watch = JobWatch(sim.bus, sim.topology, ["solver"], on_silence=silent.set)
        watch.pulse.expect([("dataflow-0", "the first")])
        rank = SteadyRank(sim)
        async with running(watch.run(), sim.restarting_service(lambda: math.inf), sim.work(), rank.train()):
            await eventually(lambda: rank.steps >= 5, timeout_s=30.0)
            for jump_s in _JUMPS_S:
                ahead_s = jump_s
                # As many steps as make sure that each kind of report was written after the jump.
                before = rank.steps
                await eventually(lambda before=before: rank.steps >= before + 10, timeout_s=10.0)  # type: ignore[misc]
        report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
    assert report.violations == []
    assert sim.incarnations == 1, "the dataflow had to begin anew"
    assert not silent.is_set()
