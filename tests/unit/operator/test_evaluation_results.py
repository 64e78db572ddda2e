"""What of a job's results is kept, whatever its pods write."""

from __future__ import annotations

from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.operator.evaluation_results import NewestResults


def result(version: int, *, policy: str = "p", benchmark: str = "b") -> EvaluationResult:
    return EvaluationResult(job="j", policy=policy, benchmark=benchmark, version=version, score=0.5, episodes=1, at=1.0)


def test_of_each_policy_and_benchmark_the_newest_are_kept_in_whatever_order_they_come() -> None:
    found = NewestResults(["p", "q"], most=3)
    for version in range(100, 0, -1):
        found.note(result(version))
        found.note(result(version, policy="q", benchmark="other"))
    for policy in ("p", "q"):
        versions = {one.version for one in found.results if one.policy == policy}
        assert {98, 99, 100} <= versions
        assert len(versions) <= 6


def test_what_nobody_asked_for_takes_no_memory() -> None:
    found = NewestResults(["p"])
    for number in range(100):
        found.note(result(1, policy=f"other-{number}"))
        found.note(result(1, benchmark=f"benchmark-{number}"))
    assert len(found.results) == 32
    assert {one.policy for one in found.results} == {"p"}


def test_a_result_that_was_written_again_counts_once() -> None:
    found = NewestResults(["p"])
    found.note(result(1))
    found.note(result(1))
    assert [one.version for one in found.results] == [1]
