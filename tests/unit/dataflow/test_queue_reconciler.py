"""What of a work queue the books want no more."""

from __future__ import annotations

from tests.support.dataflow.books import Feed, ledger
from trimtab.dataflow.ledger.evaluation_books import evaluation_task_id
from trimtab.dataflow.ledger.records import BenchmarkPlan, EvaluationEnded, EvaluationStarted, LedgerAnchoredAnew
from trimtab.dataflow.queue_reconciler import is_over


def test_a_task_is_over_when_the_groups_of_all_its_roles_are_there() -> None:
    books = ledger(policies={"solver": 1, "judge": 1})
    feed = Feed(books)
    feed.issue(2)
    feed.complete(0)
    assert not is_over(books, "t0"), "the judge's group is missing"
    feed.complete(0, policy="judge")
    assert is_over(books, "t0")
    assert not is_over(books, "t1")
    assert not is_over(books, "t2"), "it is not issued yet"


def test_tasks_are_over_when_the_books_have_given_them_up() -> None:
    books = ledger()
    Feed(books).issue(3)
    books.apply(LedgerAnchoredAnew(policy="solver", step=0, was_at=0, issued=100, given_up=3, at=1.0))
    assert all(is_over(books, f"t{number}") for number in range(3))
    assert not is_over(books, "t100")


def test_tasks_of_an_evaluation_are_over_with_their_round_and_when_its_weights_are_lost() -> None:
    books = ledger()
    plan = (BenchmarkPlan("held-out", 2, 2),)
    task = evaluation_task_id(0, "held-out", 0)
    assert not is_over(books, task), "its round may be about to begin"
    books.apply(EvaluationStarted(number=0, versions={"solver": 0}, benchmarks=plan, at=1.0))
    assert not is_over(books, task)
    books.apply(EvaluationEnded(number=0, at=2.0))
    assert is_over(books, task)
    books.apply(EvaluationStarted(number=1, versions={"solver": 7}, benchmarks=plan, at=3.0))
    assert is_over(books, evaluation_task_id(1, "held-out", 0)), "no step that was granted leads to version 7"


def test_what_is_not_ours_is_left_alone() -> None:
    books = ledger()
    assert not is_over(books, "somebody-elses")
    assert not is_over(books, "t0.solver")
