"""Two teams on one cluster. One attacks the other and itself in every way we know; the other's job trains on. In turns
of a minute with attacks and of less without, so that both meet the same machine.

    python -m benchmarks.tenants [--seconds 600]
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import click

from benchmarks.report import Bar, logs_to_stderr, note, paired_share, report
from benchmarks.tenancy.attacker import Attacker, under_attack
from benchmarks.tenancy.object_waits import ObjectWaits
from benchmarks.tenancy.site import GOOD, TwoTeams, two_teams
from trimtab.api.job import RLJob
from trimtab.dataflow.audit.report import AuditReport, audit
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.topology import JobTopology

_TURN_S, _ALONE_S = 60.0, 20.0


@dataclass
class _Measured:
    alone: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    """Steps in a second, turn by turn."""
    waits_alone: list[float] = field(default_factory=list)
    waits_attacked: list[float] = field(default_factory=list)
    """Seconds until the operator had seen a change of another object."""


def _turn(waits: ObjectWaits, seconds: float, attacker: Attacker | None) -> list[float]:
    if attacker is None:
        return asyncio.run(waits.measure(seconds))
    with under_attack(attacker, seconds):
        return asyncio.run(waits.measure(seconds))


async def _audited(teams: TwoTeams) -> AuditReport:
    administrator = teams.nats.mint().administrator(job_uid=teams.uid(teams.good, GOOD))
    credentials = MintedCredentials(lambda: administrator.credentials)
    bus = await Bus.connect(teams.nats.address, name="auditor", credentials=credentials)
    async with bus:
        return await audit(bus, JobTopology(GOOD, GOOD), data=RLJob.model_validate(teams.job).spec.data)


def _restarts(teams: TwoTeams) -> int:
    statuses = [pod["status"].get("containerStatuses") or () for pod in teams.good.pods().values()]
    return sum(int(container["restartCount"]) for containers in statuses for container in containers)


@click.command()
@click.option("--seconds", type=click.FloatRange(min=10), default=120.0, show_default=True, help="Under attack.")
def main(seconds: float) -> None:
    """Measure what a hostile team costs another one."""
    logs_to_stderr()
    turn_s = min(_TURN_S, seconds)
    measured = _Measured()
    with tempfile.TemporaryDirectory() as folder, two_teams(Path(folder)) as teams:
        attacker, waits = Attacker(teams), ObjectWaits(teams)
        note("both teams' jobs are there")
        for turn in range(max(1, round(seconds / turn_s))):
            order = (None, attacker) if turn % 2 == 0 else (attacker, None)
            for who in order:
                before, began = teams.steps, time.monotonic()
                waited = _turn(waits, min(turn_s, _ALONE_S) if who is None else turn_s, who)
                rate = (teams.steps - before) / (time.monotonic() - began)
                (measured.alone if who is None else measured.attacked).append(rate)
                (measured.waits_alone if who is None else measured.waits_attacked).extend(waited)
                name = "alone" if who is None else "attacked"
                note(f"{name}: {rate:.2f} steps/s; another object waited {max(waited):.2f} s at most")
        audited = asyncio.run(_audited(teams))
        restarts, operator_ended = _restarts(teams), teams.good.operator.ended()
    report(
        "tenants",
        {
            "steps_per_second_alone": measured.alone,
            "steps_per_second_attacked": measured.attacked,
            "longest_wait_alone_s": round(max(measured.waits_alone), 3),
            "median_wait_alone_s": round(statistics.median(measured.waits_alone), 3),
            "median_wait_attacked_s": round(statistics.median(measured.waits_attacked), 3),
            "attempts": dict(sorted(attacker.tries.items())),
            "worked": sorted(attacker.worked),
            "violations": audited.violations,
            "trained": audited.trained,
        },
        {
            "share_of_throughput_alone": Bar(paired_share(measured.attacked, measured.alone), 0.9),
            "longest_wait_of_another_object_s": Bar(max(measured.waits_attacked), 1.0, at_most=True),
            "attacks_that_worked": Bar(len(attacker.worked), 0, at_most=True),
            "violations_of_the_ledger": Bar(len(audited.violations), 0, at_most=True),
            "restarts_of_the_others_pods": Bar(restarts, 0, at_most=True),
            "operators_that_ended": Bar(0 if operator_ended is None else 1, 0, at_most=True),
        },
    )


if __name__ == "__main__":
    main()
