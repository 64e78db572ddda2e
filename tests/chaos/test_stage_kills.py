"""Stage workers, rollout workers, ranks and the dataflow are killed at random: no column is lost, doubled, or joined to
another row than it was computed of.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dataflow.books import header
from tests.support.dataflow.stage_worker import gives_up
from tests.support.dataflow.stages import column, stage
from tests.support.dataflow.storm.column_evidence import column_faults
from tests.support.dataflow.storm.evidence import faults
from tests.support.dataflow.storm.outcome import Outcome, begin, drain, examine, too_much_waits
from tests.support.dataflow.storm.service import SERVICE, prepare
from tests.support.dataflow.storm.site import GROUP, STEP_S, Computed, Leased, Note, Row, Site
from tests.support.dataflow.storm.storm import Sky, Storm
from tests.support.sizes import DataflowStorm, Sizes
from tests.support.template_process import template_process
from trimtab.dataflow.audit.columns import staged_histories
from trimtab.dataflow.audit.streams import Streams
from trimtab.embedded.nats_server import EmbeddedNats


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with EmbeddedNats(tmp_path / "nats") as nats:
        site = Site(nats.settings, tmp_path / "site", stages=True)
        site.lay_out()
        yield site


ENDS = ("stage worker killed", "stage worker left", "worker killed", "rank killed")


def summary(outcome: Outcome, tally: Counter[str], given_up: int) -> str:
    numbers = {
        **dict(sorted(tally.items())),
        "trajectories": outcome.report.arrived,
        "columns": outcome.report.columns,
        "columns that do not count": outcome.report.columns_beside,
        "groups given up by a stage": given_up,
        **{f"steps of {policy}": steps for policy, steps in outcome.report.steps.items()},
    }
    return ", ".join(f"{name}: {number}" for name, number in numbers.items())


def check_coverage(outcome: Outcome, tally: Counter[str], size: DataflowStorm, given_up: int) -> None:
    """Everything that was to happen has happened, or this test has shown nothing."""
    for what, times in size.required(*ENDS).items():
        assert tally[what] >= times, what
    assert outcome.report.steps.keys() == STEP_S.keys()
    assert min(outcome.report.steps.values()) >= size.steps
    assert outcome.report.columns > outcome.report.columns_beside
    if size.everything:
        assert outcome.report.columns_beside > 0
        assert given_up > 0


def test_no_column_is_lost_doubled_or_joined_to_another_row(
    site: Site, sizes: Sizes, capsys: pytest.CaptureFixture[str]
) -> None:
    size = sizes.stage_storm
    asyncio.run(begin(site))
    with template_process(prepare) as template:
        sky = Sky(site, template, random.Random(20261118))
        storm = Storm(sky, seconds=size.seconds, service_kills=size.service_kills)
        storm.rage(size.required(*ENDS))
        storm.calm()
        asyncio.run(drain(site, storm))
        storm.stop()
    outcome = asyncio.run(examine(site))
    stages = site.job.spec.stages
    given_up = sum(1 for one in staged_histories(outcome.streams, stages).values() if one.failed_by is not None)
    with capsys.disabled():
        sys.stdout.write(f"\n{summary(outcome, sky.tally, given_up)}\n")
    assert outcome.report.violations == []
    assert faults(outcome.notes, outcome.streams) == []
    assert column_faults(outcome.notes, outcome.streams, stages) == []
    assert (outcome.report.staged, list(outcome.report.unasked)) == (0, [])
    assert not too_much_waits(outcome.report), outcome.report.waiting
    assert "LedgerError" not in site.log(SERVICE)
    check_coverage(outcome, sky.tally, size, given_up)


REFERENCE = stage("reference")
TASK = next(number for number in range(100) if not gives_up("reference", f"t{number}.solver"))
GROUP_ID = f"t{TASK}.solver"
IDS = tuple(f"{GROUP_ID}.{index}.0" for index in range(GROUP))


def streams() -> Streams:
    """One group, of which the reference has said something twice, after something that it was not asked."""
    said = [
        column("reference", GROUP_ID, IDS[::-1], run="lie"),
        column("reference", GROUP_ID, IDS, run="first"),
        column("reference", GROUP_ID, IDS, run="second"),
    ]
    return Streams(
        records=[],
        headers=[header(TASK, index, group_size=GROUP) for index in range(GROUP)],
        trajectory_ids=IDS,
        columns=list(enumerate(said, start=1)),
        queued=frozenset(),
    )


def leased(*columns: tuple[str, int]) -> Leased:
    return Leased("solver", 0, 0, 0, (Row(1, IDS[0], GROUP_ID, 0, 0, 0, "0", columns),))


def test_good_evidence_of_columns_has_no_faults() -> None:
    notes: list[Note] = [leased(("reference", 2)), Computed("reference", GROUP_ID, "second", 3)]
    assert column_faults(notes, streams(), (REFERENCE,)) == []


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (leased(("reference", 3)), "where {'reference': 2} came first"),
        (leased(("reference", 1)), "where {'reference': 2} came first"),
        (leased(), "was joined with {}"),
        (Computed("reference", GROUP_ID, "other", 3), "was acknowledged and is not there"),
        (Computed("reference", GROUP_ID, "second", 9), "was acknowledged and is not there"),
    ],
)
def test_each_fault_in_the_evidence_of_columns_is_found(note: Note, expected: str) -> None:
    found = column_faults([note], streams(), (REFERENCE,))
    assert any(expected in fault for fault in found), found


def test_a_row_that_was_trained_without_a_column_is_found() -> None:
    stages = (REFERENCE, stage("values", "Values"))
    found = column_faults([leased(("reference", 2))], streams(), stages)
    assert any("with the columns of ['reference'] alone" in fault for fault in found), found
