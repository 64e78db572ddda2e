"""What the books make of a trainer whose checkpoints they do not meet: nothing is trained twice, and nothing waits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from tests.support.dataflow.books import GROUP, Feed, header, ledger
from tests.support.dataflow.simulation import SIGNER, pointer
from trimtab.dataflow.anchoring import anchored
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.errors import LedgerError
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import (
    LedgerAnchoredAnew,
    Record,
    StepDurable,
    StepGranted,
    TasksIssued,
)
from trimtab.dataflow.ledger.snapshot import READ_FORMATS, UnknownLedgerFormat, read_snapshot, take_snapshot
from trimtab.fabric.checkpoint_seal import UnprovenCheckpoint, proven_step
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.header import TrajectoryHeader

POLICIES = {"solver": 1, "judge": 1}


class Job(Feed):
    """Two policies with steps of two groups; the records and headers are kept, as the streams would."""

    def __init__(self) -> None:
        super().__init__(ledger(policies=POLICIES))
        self.records: list[Record] = []
        self.headers: list[TrajectoryHeader] = []

    def write(self, record: Record) -> None:
        self.records.append(record)
        self.ledger.apply(record)

    def issue(self, count: int) -> None:
        self.write(TasksIssued(first=self.ledger.issued, count=count))

    def arrive(self, one: TrajectoryHeader) -> Arrival:
        self.headers.append(one)
        return super().arrive(one)

    def bring(self, tasks: Sequence[int], *, version: int = 0) -> None:
        for task in tasks:
            for policy in POLICIES:
                self.complete(task, policy=policy, version=version)

    def grant(self, policy: str = "solver") -> StepGranted:
        granted = self.ledger.propose(policy, now=1.0)
        assert isinstance(granted, StepGranted)
        self.write(granted)
        return granted

    def anchor(self, step: int) -> LedgerAnchoredAnew:
        record = anchored(self.ledger, "solver", step=step, now=1.0)
        assert record is not None
        self.write(record)
        return record

    def recovered(self) -> Ledger:
        feed = Feed(ledger(policies=POLICIES))
        feed.ledger.begin_replay()
        for one in self.headers:
            feed.arrive(one)
        for record in self.records:
            feed.ledger.apply(record)
        feed.ledger.end_replay()
        return feed.ledger


def waiting(books: Ledger) -> dict[str, list[str]]:
    return {
        name: [group.group_id for buffer in trainer.buffers.values() for group in buffer]
        for name, trainer in books.trainers.items()
    }


@pytest.fixture
def running() -> Job:
    """Step 0 is durable, step 1 granted; two groups wait, one is begun and two tasks have brought nothing."""
    job = Job()
    job.issue(9)
    job.bring(range(6))
    job.grant()
    job.grant("judge")
    job.write(StepDurable(policy="solver", step=0))
    job.grant()
    job.arrive(header(6, 0))
    return job


@pytest.mark.parametrize("step", [1, 2])
def test_a_step_that_the_books_have_or_that_is_due_needs_nothing(running: Job, step: int) -> None:
    assert anchored(running.ledger, "solver", step=step, now=1.0) is None


@pytest.mark.parametrize("step", [pytest.param(5, id="the ledger lost its end"), pytest.param(0, id="the trainer did")])
def test_it_goes_on_at_the_proven_step_with_nothing_of_what_was_there(running: Job, step: int) -> None:
    record = running.anchor(step)
    assert record.is_forward == (step == 5)
    assert record.was_at == (2 if step == 5 else 1)
    # Of each policy: those that wait, the one that is begun, and two of which nothing has come.
    assert record.given_up == (2 + 3) + (4 + 3)
    books = running.ledger
    for view in (books, running.recovered()):
        solver = view.trainers["solver"]
        assert (solver.next_step, solver.durable_steps, solver.trained_steps) == (step, step, step)
        assert solver.granted == {}
        assert waiting(view) == {"solver": [], "judge": []}
        assert [view.running_groups(stream) for stream in POLICIES] == [0, 0]
        assert [view.under_way(stream) for stream in POLICIES] == [0, 0]
        # The step of the other policy counts: a rank of its trainer may ask for it again.
        assert [one.group.group_id for one in view.trainers["judge"].allotments(0)] == ["t0.judge", "t1.judge"]
        assert view.capacity_tasks() > 0


def test_what_comes_of_earlier_tasks_is_too_late_and_later_ones_are_trained(running: Job) -> None:
    record = running.anchor(5)
    for index in range(GROUP):
        assert running.arrive(header(6, index)) is Arrival.DUPLICATE
        assert running.arrive(header(record.issued - 1, index)) is Arrival.DUPLICATE, "of a record that was lost"
    running.issue(2)
    running.bring([record.issued, record.issued + 1], version=5)
    for view in (running.recovered(), running.ledger):
        assert waiting(view)["solver"] == [f"t{record.issued}.solver", f"t{record.issued + 1}.solver"]
        assert view.running_groups("solver") == 0
    granted = running.grant()
    assert granted.step == 5
    assert running.recovered().trainers["solver"].next_step == 6


def test_a_snapshot_knows_what_was_given_up(running: Job) -> None:
    record = running.anchor(5)
    running.issue(1)
    plain = msgspec.msgpack.encode(take_snapshot(running.ledger, learnt={}))
    snapshot = read_snapshot(plain)
    stream = snapshot.streams["solver"]
    assert (stream.settled_below, snapshot.anchored_anew) == (record.issued, 1)
    assert snapshot.issued * 1 - stream.finished_groups - stream.written_off_groups == 1
    assert snapshot.given_up_groups == record.given_up


@pytest.mark.parametrize("found", [0, 3, 7])
def test_a_snapshot_of_another_format_is_refused_by_its_number(found: int) -> None:
    """Whatever else is in it."""
    with pytest.raises(UnknownLedgerFormat, match=rf"format {found}, .* reads 1 and 2"):
        read_snapshot(msgspec.msgpack.encode({"format": found, "quite": "different"}))


def test_a_snapshot_of_the_format_before_is_read(running: Job) -> None:
    tree = msgspec.to_builtins(take_snapshot(running.ledger, learnt={}))
    tree["format"] = READ_FORMATS[0]
    for name in ("anchored_anew", "given_up_groups"):
        del tree[name]
    for stream in tree["streams"].values():
        del stream["written_off_groups"], stream["settled_below"]
    assert read_snapshot(msgspec.msgpack.encode(tree)).streams["solver"].written_off_groups == 0


def test_it_never_goes_back_to_numbers_that_were_given(running: Job) -> None:
    record = running.anchor(5)
    with pytest.raises(LedgerError, match="anchored at task"):
        running.ledger.apply(msgspec.structs.replace(record, issued=1))


def test_numbers_of_a_record_that_was_lost_are_not_given_again() -> None:
    """The end that is lost the second time has the record of the first in it, and all that was issued after it."""
    given = range(0)
    for now in (1000.0, 1000.2, 1000.3):
        job = Job()
        job.issue(9)
        record = anchored(job.ledger, "solver", step=5, now=now)
        assert record is not None
        assert record.issued >= given.stop
        given = range(record.issued, record.issued + 2000)


def test_a_clock_that_was_put_back_leaves_room(running: Job) -> None:
    first = anchored(running.ledger, "solver", step=5, now=1000.0)
    assert first is not None
    running.write(first)
    second = anchored(running.ledger, "solver", step=9, now=10.0)
    assert second is not None
    assert second.issued > first.issued + 100_000


class TestProof:
    verifier = Verifier([SIGNER.public_text])

    def test_it_says_the_newest_step(self) -> None:
        assert proven_step(pointer("n/j", 7), job="n/j", policy="solver", verifier=self.verifier) == 7

    @pytest.mark.parametrize(
        ("sealed", "why"),
        [
            pytest.param(pointer("n/other", 7), "job n/other", id="of another job"),
            pytest.param(pointer("n/j", 7, policy="judge"), "policy judge", id="of another policy"),
            pytest.param(pointer("n/j", 7, signer=Signer.generate()), "not signed", id="by another key"),
            pytest.param(pointer("n/j", 7).replace(b'"step":7', b'"step":9'), "not signed", id="changed"),
            pytest.param(b"{}", "not signed", id="something else"),
            pytest.param(b"\xff", "not signed", id="noise"),
            pytest.param(b'{"signature":"!","signed":{}}', "not signed", id="no signature"),
        ],
    )
    def test_what_proves_nothing(self, sealed: bytes, why: str) -> None:
        with pytest.raises(UnprovenCheckpoint, match=why):
            proven_step(sealed, job="n/j", policy="solver", verifier=self.verifier)
