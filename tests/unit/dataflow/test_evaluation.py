"""When evaluations are due, and how their samples are counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.dataflow.books import Feed, header, ledger
from tests.support.dataflow.jobs import job, spec
from tests.support.dataflow.stages import column, stage
from trimtab.api.evaluation import Evaluation
from trimtab.dataflow.evaluation.baseline import Baseline, is_awaited
from trimtab.dataflow.evaluation.evaluator import is_due, is_owed
from trimtab.dataflow.finish import Finisher
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.errors import LedgerError
from trimtab.dataflow.ledger.records import (
    BenchmarkPlan,
    EvaluationEnded,
    EvaluationStarted,
    PolicyFinished,
    StepGranted,
    StepTrained,
)
from trimtab.dataflow.ledger.snapshot import LedgerSnapshot, Restoration, take_snapshot
from trimtab.dataflow.ledger.staged_group import ColumnArrival
from trimtab.fabric.wire.column import ColumnHeader
from trimtab.fabric.wire.header import TrajectoryHeader
from trimtab.fabric.wire.purpose import Purpose

HELD_OUT = {"jsonl": {"uri": "held-out.jsonl"}, "name": "held-out"}


def settings(**fields: object) -> Evaluation:
    return Evaluation.model_validate({"everySteps": 10, "benchmarks": [HELD_OUT], **fields})


def answer(
    number: int,
    prompt: int,
    index: int,
    *,
    reward: float = 1.0,
    version: int = 3,
    error: str | None = None,
    of: int = 2,
) -> TrajectoryHeader:
    task = f"e{number}.held-out.{prompt}"
    plain = header(0, index, version=version, reward=reward, error=error, group_size=2)
    return msgspec.structs.replace(
        plain, task_id=task, group_id=f"{task}.solver", purpose=Purpose.EVALUATION, benchmark="held-out"
    )


def started(number: int, *, prompts: int = 2, version: int = 3) -> EvaluationStarted:
    return EvaluationStarted(
        number=number, versions={"solver": version}, benchmarks=(BenchmarkPlan("held-out", prompts, 2),), at=1.0
    )


@pytest.mark.parametrize(
    ("lead", "last", "at_start", "due"),
    [
        (0, None, True, True),
        (0, None, False, False),
        (10, None, False, True),
        (9, 0, True, False),
        (10, 0, True, True),
        (35, 12, True, True),
        (19, 12, True, False),
    ],
)
def test_a_round_is_due_with_every_so_many_versions(lead: int, last: int | None, at_start: bool, due: bool) -> None:
    assert is_due(lead, last_lead=last, settings=settings(atStart=at_start)) == due


@pytest.mark.parametrize(("lead", "last", "due"), [(7, 0, True), (7, None, True), (7, 7, False)])
def test_at_the_end_a_round_is_due_whatever_the_distance(lead: int, last: int | None, due: bool) -> None:
    assert is_due(lead, last_lead=last, settings=settings(atStart=False), is_last=True) == due


def test_samples_count_once_and_failed_ones_are_not_zeros() -> None:
    feed = Feed(ledger())
    books = feed.ledger.evaluation
    feed.ledger.apply(started(0))
    assert feed.arrive(answer(0, 0, 0, reward=0.5)) is Arrival.NOT_FOR_TRAINING
    assert feed.arrive(answer(0, 0, 0, reward=0.1)) is Arrival.NOT_FOR_TRAINING, "again, with another reward"
    assert not books.is_done("held-out", 0)
    assert feed.arrive(answer(0, 0, 1, reward=1.0, version=4)) is Arrival.EVALUATED
    assert books.is_done("held-out", 0)
    assert feed.arrive(answer(0, 0, 1, reward=0.0)) is Arrival.NOT_FOR_TRAINING
    for index in range(2):
        feed.arrive(answer(0, 1, index, error="engine-gone"))
    (score,) = books.score()
    assert (score.score, score.episodes, score.failed) == (0.75, 2, 2)
    assert (score.version, score.oldest_version, score.newest_version) == (3, 3, 4)
    assert feed.ledger.trainers["solver"].buffered == 0
    assert feed.ledger.running_groups("solver") == 0


def test_a_round_of_which_everything_failed_has_no_score() -> None:
    feed = Feed(ledger())
    feed.ledger.apply(started(0, prompts=1))
    for index in range(2):
        feed.arrive(answer(0, 0, index, error="engine-gone"))
    (score,) = feed.ledger.evaluation.score()
    assert (score.score, score.episodes, score.failed) == (None, 0, 2)


def test_rounds_follow_one_another() -> None:
    books = ledger()
    with pytest.raises(LedgerError, match="evaluation 1 where 0 was due"):
        books.apply(started(1))
    books.apply(started(0))
    books.apply(EvaluationEnded(number=0, at=2.0))
    assert books.evaluation.running is None
    with pytest.raises(LedgerError):
        books.apply(started(0))
    books.apply(started(1, version=12))
    assert books.evaluation.last_lead == 12


def test_headers_that_a_restart_reads_before_the_record_of_their_round_are_kept() -> None:
    feed = Feed(ledger())
    for prompt in range(2):
        for index in range(2):
            feed.arrive(answer(0, prompt, index))
    feed.ledger.apply(started(0))
    assert all(feed.ledger.evaluation.is_done("held-out", prompt) for prompt in range(2))
    feed.ledger.apply(EvaluationEnded(number=0, scores=feed.ledger.evaluation.score(), at=2.0))
    assert feed.ledger.evaluation.first_sequence is None
    assert feed.arrive(answer(0, 0, 0)) is Arrival.NOT_FOR_TRAINING
    assert feed.ledger.evaluation.first_sequence is None, "late answers hold nothing back"


def test_a_snapshot_in_the_midst_of_a_round_keeps_its_samples() -> None:
    feed = Feed(ledger())
    feed.ledger.apply(started(0))
    samples = [answer(0, 0, 0, reward=0.2), answer(0, 0, 1, reward=0.4), answer(0, 1, 0, reward=0.9)]
    for one in samples:
        feed.arrive(one)
    packed = msgspec.msgpack.encode(take_snapshot(feed.ledger, learnt={}))
    snapshot = msgspec.msgpack.decode(packed, type=LedgerSnapshot)
    assert snapshot.floor == 1
    restored = ledger()
    restoration = Restoration(restored, snapshot)
    for sequence, one in enumerate(samples, start=1):
        restoration.arrived(sequence, "x", one)
    restoration.finish()
    assert restored.evaluation.score() == feed.ledger.evaluation.score()
    assert restored.evaluation.running == feed.ledger.evaluation.running


def test_the_best_version_of_all_rounds_is_known_also_after_a_snapshot() -> None:
    feed = Feed(ledger())
    for number, (version, reward) in enumerate([(0, 0.25), (10, 0.75), (20, 0.5), (30, 0.75)]):
        feed.ledger.apply(started(number, prompts=1, version=version))
        for index in range(2):
            feed.arrive(answer(number, 0, index, reward=reward))
        feed.ledger.apply(EvaluationEnded(number=number, scores=feed.ledger.evaluation.score(), at=2.0))
        best = feed.ledger.evaluation.best["solver", "held-out"]
        assert best.version == {0: 0, 10: 10, 20: 10, 30: 30}[version], "of equal ones the newest"
    packed = msgspec.msgpack.encode(take_snapshot(feed.ledger, learnt={}))
    restored = ledger()
    Restoration(restored, msgspec.msgpack.decode(packed, type=LedgerSnapshot))
    assert restored.evaluation.best == feed.ledger.evaluation.best


GRADE = stage("grade", "Reward", needs=["kept", "surprise"])
STAGES = (stage("reference"), stage("kept", "Filter"), stage("surprise", "Custom", needs=["reference"]), GRADE)


def staged() -> Feed:
    """Both rows of a prompt are there, worth 0.5 each to the workflow."""
    feed = Feed(ledger(stages=STAGES))
    feed.ledger.apply(started(0, prompts=1))
    assert feed.arrive(answer(0, 0, 0, reward=0.5)) is Arrival.NOT_FOR_TRAINING
    assert feed.arrive(answer(0, 0, 1, reward=0.5)) is Arrival.STAGED
    assert feed.arrive(answer(0, 0, 1, reward=0.5)) is Arrival.NOT_FOR_TRAINING, "again"
    return feed


def due(feed: Feed) -> list[str]:
    return [name for _, _, name in feed.ledger.evaluation.stages.due(100)]


def said(name: str, **says: Any) -> ColumnHeader:
    group = "e0.held-out.0.solver"
    return column(name, group, [f"{group}.0.0", f"{group}.1.0"], **says)


def test_held_out_rows_are_worth_what_the_stages_of_training_say() -> None:
    feed = staged()
    books = feed.ledger.evaluation
    assert (due(feed), feed.ledger.waiting_for("reference")) == (["reference"], 1)
    assert not books.is_done("held-out", 0)
    assert feed.ledger.column_arrived(1, said("reference")) is ColumnArrival.NEW
    assert due(feed) == ["surprise"]
    assert feed.ledger.column_arrived(2, said("kept", keep=[True, False])) is ColumnArrival.REFUSED, (
        "nothing is left out"
    )
    assert feed.ledger.column_arrived(3, said("surprise")) is ColumnArrival.NEW
    assert due(feed) == ["grade"]
    assert feed.ledger.column_arrived(4, said("grade", rewards=[0.0, 0.25])) is ColumnArrival.DONE
    assert feed.ledger.column_arrived(5, said("grade", rewards=[9.0, 9.0], run="late")) is ColumnArrival.DUPLICATE
    assert books.is_done("held-out", 0)
    (score,) = books.score()
    assert (score.score, score.episodes, score.failed) == (0.125, 2, 0)
    assert feed.ledger.stages.answered.done == {"reference": 1, "surprise": 1, "grade": 1}
    assert not feed.ledger.stages.staged["solver"], "nothing of it is for training"


def test_held_out_rows_that_a_stage_gives_up_are_failed_and_no_zeros() -> None:
    feed = staged()
    assert feed.ledger.column_arrived(1, said("reference", error="stage.gave-up")) is ColumnArrival.FAILED
    (score,) = feed.ledger.evaluation.score()
    assert (score.score, score.episodes, score.failed) == (None, 0, 2)


def test_a_row_that_failed_leaves_nothing_for_a_stage_to_say() -> None:
    feed = Feed(ledger(stages=STAGES))
    feed.ledger.apply(started(0, prompts=1))
    feed.arrive(answer(0, 0, 0, reward=0.5))
    assert feed.arrive(answer(0, 0, 1, error="engine-gone")) is Arrival.EVALUATED
    (score,) = feed.ledger.evaluation.score()
    assert (score.score, score.episodes, score.failed, due(feed)) == (None, 0, 2, [])


def test_without_a_stage_that_rewards_the_workflow_says_what_held_out_rows_are_worth() -> None:
    feed = Feed(ledger(stages=STAGES[:3]))
    feed.ledger.apply(started(0, prompts=1))
    feed.arrive(answer(0, 0, 0, reward=0.5))
    assert feed.arrive(answer(0, 0, 1, reward=1.0)) is Arrival.EVALUATED
    assert feed.ledger.evaluation.score()[0].score == 0.75


def test_a_round_that_ends_waits_for_no_stage() -> None:
    feed = staged()
    feed.ledger.column_arrived(1, said("reference"))
    assert feed.ledger.evaluation.first_column == 1
    feed.ledger.apply(EvaluationEnded(number=0, at=2.0))
    assert (due(feed), feed.ledger.waiting_for("surprise")) == ([], 0)
    assert feed.ledger.evaluation.first_column is None
    assert feed.ledger.column_arrived(2, said("surprise")) is ColumnArrival.DUPLICATE
    assert feed.ledger.evaluation.first_column is None


def test_a_snapshot_keeps_what_stages_have_said_of_held_out_rows() -> None:
    feed = staged()
    columns = [(1, said("reference")), (2, said("surprise"))]
    for sequence, one in columns:
        feed.ledger.column_arrived(sequence, one)
    snapshot = msgspec.msgpack.decode(
        msgspec.msgpack.encode(take_snapshot(feed.ledger, learnt={})), type=LedgerSnapshot
    )
    assert (snapshot.floor, snapshot.stages.floor) == (1, 1)
    restored = ledger(stages=STAGES)
    restoration = Restoration(restored, snapshot, columns)
    for index in range(2):
        restoration.arrived(index + 1, f"e0.held-out.0.solver.{index}.0", answer(0, 0, index, reward=0.5))
    restoration.finish()
    assert restored.stages.answered.done == {"reference": 1, "surprise": 1}
    assert [name for _, _, name in restored.evaluation.stages.due(100)][-1] == "grade"
    assert restored.column_arrived(3, said("grade", rewards=[0.0, 0.25])) is ColumnArrival.DONE
    assert restored.evaluation.score()[0].score == 0.125


def test_a_column_that_is_read_before_its_rows_waits_for_them() -> None:
    feed = Feed(ledger(stages=STAGES))
    feed.ledger.apply(started(0, prompts=1))
    assert feed.ledger.column_arrived(1, said("reference")) is ColumnArrival.EARLY
    for index in range(2):
        feed.arrive(answer(0, 0, index))
    assert due(feed) == ["surprise"]


def test_a_policy_ends_after_the_evaluation_of_its_last_version_and_not_for_ever() -> None:
    desired = spec(maxSteps=1, evaluation={"everySteps": 1, "benchmarks": [HELD_OUT]})
    feed = Feed(ledger())
    feed.issue(2)
    feed.complete(0)
    feed.complete(1)
    granted = feed.ledger.propose("solver", now=1.0)
    assert isinstance(granted, StepGranted)
    feed.ledger.apply(granted)
    feed.ledger.apply(StepTrained(policy="solver", step=0))
    now = [0.0]
    finish = Finisher(desired, total_prompts=None, clock=lambda: now[0])
    assert finish(feed.ledger, "solver") is None, "version 1 was never evaluated"
    feed.ledger.apply(started(0, version=1))
    assert finish(feed.ledger, "solver") is None, "it is being evaluated"
    feed.ledger.apply(EvaluationEnded(number=0, at=2.0))
    assert finish(feed.ledger, "solver") is not None
    feed.ledger.apply(started(1, version=1))
    now[0] = 3600.0
    assert finish(feed.ledger, "solver") is not None, "with no pool alive the job would never end"


def test_a_policy_waits_for_its_own_last_evaluation_however_long_ago_another_waited() -> None:
    desired = spec(maxSteps=2, evaluation={"everySteps": 1, "benchmarks": [HELD_OUT]})
    books, now = ledger(policies={"solver": 1, "judge": 1}), [0.0]
    finish = Finisher(desired, total_prompts=None, clock=lambda: now[0])
    for policy in ("solver", "judge"):
        books.apply(started(books.evaluation.ended, version=2))
        books.trainers[policy].next_step = books.trainers[policy].trained_steps = 2
        assert finish(books, policy) is None, "a round is under way"
        books.apply(EvaluationEnded(number=books.evaluation.ended, at=2.0))
        ended = finish(books, policy)
        assert ended is not None
        books.apply(ended)
        now[0] += 3600.0


def test_the_last_round_comes_when_all_policies_have_had_enough() -> None:
    """Of two the first that is through ends without one: the other goes on, and what it learns is not known yet."""
    desired = spec(maxSteps=7, evaluation={"everySteps": 50, "benchmarks": [HELD_OUT]})
    books = ledger(policies={"solver": 1, "judge": 1})
    finish = Finisher(desired, total_prompts=None, clock=lambda: 0.0)
    books.apply(started(0, version=0))
    books.apply(EvaluationEnded(number=0, at=1.0))
    for trainer, steps in ((books.trainers["solver"], 7), (books.trainers["judge"], 3)):
        trainer.next_step = trainer.trained_steps = steps
    assert not finish.is_last(books)
    assert finish(books, "solver") is not None
    books.apply(PolicyFinished(policy="solver", reason="maxSteps 7 done"))
    books.trainers["judge"].next_step = books.trainers["judge"].trained_steps = 7
    assert finish.is_last(books)
    assert finish(books, "judge") is None, "version 7 is to be evaluated"
    books.apply(started(1, version=7))
    books.apply(EvaluationEnded(number=1, at=2.0))
    assert finish(books, "judge") is not None


def test_the_first_step_waits_for_the_first_round_and_not_for_ever() -> None:
    desired = spec(evaluation={"everySteps": 5, "benchmarks": [HELD_OUT]})
    books, now = ledger(), [0.0]
    baseline = Baseline(desired, clock=lambda: now[0])
    assert baseline(books)
    books.apply(started(0, version=0))
    assert baseline(books), "it is under way"
    now[0] = 1000.0
    assert not baseline(books), "with no pool alive the job would never begin"
    now[0] = 0.0
    other = Baseline(desired, clock=lambda: now[0])
    assert other(books)
    books.apply(EvaluationEnded(number=0, at=1.0))
    assert not other(books)


def test_what_is_not_evaluated_at_its_start_or_has_begun_waits_for_nothing() -> None:
    for without in ({}, {"evaluation": {"atStart": False, "benchmarks": [HELD_OUT]}}):
        assert not is_awaited(ledger(), spec(**without))
    desired = spec(evaluation={"benchmarks": [HELD_OUT]})
    books = ledger()
    books.trainers["solver"].next_step = 1
    assert not is_awaited(books, desired), "evaluation was added to a job that runs"


def test_a_version_that_is_never_published_is_not_waited_for() -> None:
    desired = job(trainer={"publish": {"everySteps": 3}}, evaluation={"everySteps": 5, "benchmarks": [HELD_OUT]}).spec
    books = ledger()
    books.apply(started(0, version=0))
    books.apply(EvaluationEnded(number=0, at=1.0))
    books.trainers["solver"].trained_steps = 5
    assert not is_owed(books, desired), "of versions 0, 3 and 6 none is at 5"
    books.trainers["solver"].trained_steps = 6
    assert is_owed(books, desired)
