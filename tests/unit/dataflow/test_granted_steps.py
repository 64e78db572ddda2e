"""Which step trained on a group, as the ledger's messages say it."""

from __future__ import annotations

import msgspec
import pytest
import zstandard

from tests.support.dataflow.books import Feed, ledger
from trimtab.dataflow.audit.granted_steps import GrantedSteps
from trimtab.dataflow.ledger.records import LedgerAnchoredAnew, SnapshotPart, StepGranted, TasksIssued
from trimtab.dataflow.ledger.snapshot import take_snapshot


def granted(step: int, *groups: str, replayed: tuple[str, ...] = (), policy: str = "solver") -> StepGranted:
    return StepGranted(policy=policy, step=step, groups=groups, replayed=replayed, granted_at=1.0)


@pytest.fixture
def found() -> GrantedSteps:
    return GrantedSteps()


def test_a_group_belongs_to_the_step_that_trained_on_it_first(found: GrantedSteps) -> None:
    for record in (granted(0, "a", "b"), granted(0, "c"), granted(1, "d", replayed=("a",))):
        found.add(record)
    assert found.steps == {("solver", "a"): 0, ("solver", "b"): 0, ("solver", "c"): 0, ("solver", "d"): 1}


def test_each_trainer_has_steps_of_its_own(found: GrantedSteps) -> None:
    found.add(granted(3, "a"))
    found.add(granted(9, "a", policy="critic"))
    assert found.steps == {("solver", "a"): 3, ("critic", "a"): 9}


def test_what_is_granted_again_after_a_loss_belongs_to_the_later_step(found: GrantedSteps) -> None:
    found.add(granted(4, "a"))
    found.add(granted(5, "b"))
    found.add(LedgerAnchoredAnew(policy="solver", step=5, was_at=6, issued=9, given_up=1, at=1.0))
    found.add(granted(7, "b"))
    assert found.steps == {("solver", "a"): 4, ("solver", "b"): 7}


def test_a_snapshot_tells_the_steps_that_are_not_durable(found: GrantedSteps) -> None:
    """In parts, of which the first came twice: its writer had died."""
    job = Feed(ledger())
    job.ledger.apply(TasksIssued(first=0, count=4))
    for task in range(4):
        job.complete(task)
    record = job.ledger.propose("solver", now=1.0)
    assert isinstance(record, StepGranted)
    job.ledger.apply(record)
    packed = zstandard.compress(msgspec.msgpack.encode(take_snapshot(job.ledger, learnt={})))
    half = len(packed) // 2
    parts = [SnapshotPart(number=n, count=2, body=body) for n, body in enumerate((packed[:half], packed[half:]))]
    for part in (parts[0], *parts):
        found.add(part)
    assert found.steps == {("solver", group): 0 for group in record.groups}
