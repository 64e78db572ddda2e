"""Three policies, eight workers, six ranks: all of them join, leave and are killed at random while the dataflow is
killed again and again. Nothing is lost, nothing doubled, nothing too stale, and no group broken.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.support.dataflow.books import header
from tests.support.dataflow.storm.evidence import Episodes, GroupEnds, faults
from tests.support.dataflow.storm.outcome import Outcome, begin, drain, examine, too_much_waits
from tests.support.dataflow.storm.service import SERVICE, prepare
from tests.support.dataflow.storm.site import (
    GROUP,
    STALENESS,
    STEP_S,
    Durable,
    Dying,
    Leased,
    Note,
    Row,
    Site,
    Stored,
    Superseded,
)
from tests.support.dataflow.storm.storm import Sky, Storm
from tests.support.sizes import DataflowStorm, Sizes
from tests.support.template_process import template_process
from trimtab.dataflow.audit.streams import Streams
from trimtab.dataflow.ledger.records import GroupsFiltered, Record, StepGranted
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.wire.header import TrajectoryHeader


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with EmbeddedNats(tmp_path / "nats") as nats:
        site = Site(nats.settings, tmp_path / "site")
        site.lay_out()
        yield site


def ends_of(outcome: Outcome) -> GroupEnds:
    return GroupEnds(outcome.streams, Episodes(outcome.streams.headers))


def runs_given_up(headers: Sequence[TrajectoryHeader]) -> int:
    """Runs of which a part arrived, and which are not the episode."""
    episodes = Episodes(headers)
    runs = {(header.group_id, header.group_index, header.run) for header in headers}
    return sum(1 for group_id, index, run in runs if episodes.run.get((group_id, index)) != run)


ENDS = ("worker killed", "worker left", "rank killed", "trainer left")


def summary(outcome: Outcome, tally: Counter[str]) -> str:
    numbers = {
        **dict(sorted(tally.items())),
        "workers dead before their acknowledgement": sum(isinstance(note, Dying) for note in outcome.notes),
        "ranks superseded": sum(isinstance(note, Superseded) for note in outcome.notes),
        "trajectories": outcome.report.arrived,
        "duplicates": outcome.report.duplicates_seen,
        "runs given up": runs_given_up(outcome.streams.headers),
        "redeliveries": outcome.redeliveries,
        **{f"steps of {policy}": steps for policy, steps in outcome.report.steps.items()},
        **{f"groups {end}": count for end, count in sorted(ends_of(outcome).counts().items())},
    }
    return ", ".join(f"{name}: {number}" for name, number in numbers.items())


def check_coverage(outcome: Outcome, tally: Counter[str], size: DataflowStorm) -> None:
    """Everything that was to happen has happened, or this test has shown nothing."""
    for what, times in size.required(*ENDS).items():
        assert tally[what] >= times, what
    assert outcome.report.steps.keys() == STEP_S.keys()
    assert min(outcome.report.steps.values()) >= size.steps
    if not size.everything:
        return
    assert outcome.report.duplicates_seen > 0
    assert max(header.parts for header in outcome.streams.headers) > 1
    assert min(header.parts for header in outcome.streams.headers) == 0
    assert runs_given_up(outcome.streams.headers) > 0
    assert outcome.redeliveries > 0
    assert any(isinstance(note, Dying) for note in outcome.notes)
    assert any(isinstance(note, Superseded) for note in outcome.notes)
    ends = ends_of(outcome).counts()
    assert all(ends[end] > 0 for end in ("granted", "stale", "filtered", "failed", "empty")), ends


def test_nothing_is_lost_or_doubled_while_everybody_is_killed(
    site: Site, sizes: Sizes, capsys: pytest.CaptureFixture[str]
) -> None:
    size = sizes.dataflow_storm
    asyncio.run(begin(site))
    with template_process(prepare) as template:
        sky = Sky(site, template, random.Random(20261122))
        storm = Storm(sky, seconds=size.seconds, service_kills=size.service_kills)
        storm.rage(size.required(*ENDS))
        storm.calm()
        asyncio.run(drain(site, storm))
        storm.stop()
    outcome = asyncio.run(examine(site))
    with capsys.disabled():
        sys.stdout.write(f"\n{summary(outcome, sky.tally)}\n")
    assert outcome.report.violations == []
    assert faults(outcome.notes, outcome.streams) == []
    assert not too_much_waits(outcome.report), outcome.report.waiting
    assert "LedgerError" not in site.log(SERVICE)
    check_coverage(outcome, sky.tally, size)


def leased(step: int, rank: int, tasks: range, *, attempt: int = 0, version: int = 0) -> Leased:
    """Two of the samples of each group for either rank."""
    rows = (
        Row(1 + 4 * task + index, f"t{task}.solver.{index}", f"t{task}.solver", index, version)
        for task in tasks
        for index in (rank, rank + 2)
    )
    return Leased("solver", step, rank, attempt, tuple(rows))


def granted(step: int, tasks: range) -> StepGranted:
    groups = tuple(f"t{task}.solver" for task in tasks)
    return StepGranted(policy="solver", step=step, groups=groups, granted_at=1.0)


FIRST, SECOND = range(4), range(4, 8)
SEEN: list[Note] = [
    *(leased(0, rank, FIRST) for rank in (0, 1)),
    *(leased(1, rank, SECOND) for rank in (0, 1)),
    Durable("solver", 0, 0),
    leased(1, 0, SECOND, attempt=1),
    Stored("solver", "t2.solver", 3, 12),
]
RECORDED: list[Record] = [granted(0, FIRST), granted(1, SECOND)]


def judged_notes(notes: list[Note], records: list[Record]) -> list[str]:
    headers = [header(task, index, group_size=GROUP) for task in range(9) for index in range(GROUP)]
    return faults(notes, Streams(records=records, headers=headers, queued=frozenset()))


def test_good_evidence_has_no_faults() -> None:
    assert judged_notes(SEEN, RECORDED) == []


@pytest.mark.parametrize(
    ("note", "record", "expected"),
    [
        (leased(1, 0, FIRST, attempt=2), None, "other rows in attempt 2 than in attempt 0"),
        (leased(0, 1, FIRST, attempt=1), None, "attempt 1 got step 0, durable in attempt 0"),
        (leased(3, 0, range(8, 9)), None, "step 3 was served, and step 2 not to every rank"),
        (leased(2, 0, FIRST), granted(2, FIRST), "is in steps 0 and 2"),
        (leased(STALENESS + 1, 0, range(8, 9)), None, f"of version 0 trained in step {STALENESS + 1}"),
        (leased(2, 0, range(8, 9)), granted(2, range(9, 10)), "other rows in step 2 than the ledger"),
        (Stored("solver", "t2.solver", 2, 12), None, "row 0 of episode 2 of t2.solver was acknowledged"),
        (Stored("solver", "t9.solver", 0, 37), None, "row 0 of episode 0 of t9.solver was acknowledged"),
        (Durable("solver", 1, 0), GroupsFiltered(policy="solver", left_out=("t3.solver",)), "is granted and filtered"),
    ],
)  # fmt: skip
def test_each_fault_in_the_evidence_is_found(note: Note, record: Record | None, expected: str) -> None:
    found = judged_notes([*SEEN, note], [*RECORDED, *([] if record is None else [record])])
    assert any(expected in fault for fault in found), found


def test_rows_of_another_run_than_the_first_that_was_whole_are_found() -> None:
    def row(part: int, run: str) -> TrajectoryHeader:
        return header(0, 0, part=part, parts=2, run=run, group_size=1)

    episodes = Episodes([row(0, "a"), row(1, "b"), row(0, "b"), row(1, "a")])
    assert episodes.run == {("t0.solver", 0): "b"}
    assert episodes.sequences["t0.solver"] == {("t0.solver", 0, 0): 3, ("t0.solver", 0, 1): 2}


@pytest.mark.parametrize(
    ("rank_1", "expected"),
    [
        (leased(0, 0, FIRST), "has a row on two ranks"),
        (leased(0, 1, range(3)), "has 2 of the 4 rows of t3.solver"),
        (leased(0, 1, range(1, 5)), "has 2 of the 4 rows of t0.solver"),
    ],
)
def test_ranks_that_do_not_share_a_step_fairly_are_found(rank_1: Leased, expected: str) -> None:
    other = msgspec.structs.replace(rank_1, rank=1)
    found = judged_notes([leased(0, 0, FIRST), other], RECORDED)
    assert any(expected in fault for fault in found), found
