"""What is made of a job's streams: points, a file that grows by runs, a mean of lines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from examples.curves.drawing import draw, mean_line
from examples.curves.measuring import NothingTrained, policy_curves
from examples.curves.record import Curves, PolicyCurve, Run, ScorePoint, StepPoint, read_curves, write_curves
from examples.curves.summary import summary
from tests.support.dataflow.books import header
from trimtab.dataflow.ledger.records import (
    BenchmarkPlan,
    EvaluationEnded,
    EvaluationScore,
    EvaluationStarted,
    Record,
    StepGranted,
)
from trimtab.fabric.wire.purpose import Purpose

_PLAN = BenchmarkPlan("held-out", 2, 1)


def _grant(step: int, *groups: str, at: float, replayed: tuple[str, ...] = (), last: bool = True) -> StepGranted:
    return StepGranted(policy="solver", step=step, groups=groups, replayed=replayed, last=last, granted_at=at)


def _run(variant: str = "job", *, seed: int = 0, reward: float = 0.5) -> Run:
    steps = tuple(StepPoint(step, float(step), 8 * step, reward) for step in range(3))
    scores = (ScorePoint(0, 0.5, 4, 0.1), ScorePoint(2, 2.5, 20, reward))
    return Run(variant=variant, seed=seed, policies={"solver": PolicyCurve(steps=steps, scores={"held-out": scores})})


def test_a_step_has_the_mean_of_its_batch_and_what_was_generated_by_then() -> None:
    headers = [
        msgspec.structs.replace(header(task, index, reward=float(task)), finished_at=10.0 + task)
        for task in range(3)
        for index in range(2)
    ]
    records = [
        _grant(0, "t0.solver", at=10.5, last=False),
        _grant(0, "t1.solver", at=11.5),
        _grant(1, "t2.solver", at=12.5, replayed=("t0.solver",)),
        _grant(2, "t2.solver", at=12.6, last=False),
    ]
    curve = policy_curves(headers, records)["solver"]
    assert curve.steps == (StepPoint(0, 10.5, 4, 0.5), StepPoint(1, 11.5, 6, 1.0))


def test_a_policy_that_plays_no_role_has_the_rewards_of_the_rows_that_it_learns_from() -> None:
    headers = [msgspec.structs.replace(header(task, 0, reward=float(task)), finished_at=10.0 + task) for task in (0, 1)]
    critics = msgspec.structs.replace(_grant(0, "t1.solver", at=11.5), policy="critic")
    curves = policy_curves(headers, [_grant(0, "t0.solver", at=10.5), critics])
    assert curves["critic"].steps == (StepPoint(0, 10.5, 2, 1.0),)
    assert curves["solver"].steps == (StepPoint(0, 9.5, 1, 0.0),)


def test_a_score_stands_where_the_weights_that_sampled_were_made() -> None:
    """The round began with version 0 and was answered by versions 1 and 3."""
    trained = [msgspec.structs.replace(header(task, 0), finished_at=10.0 + task) for task in range(3)]
    answered = [
        msgspec.structs.replace(
            header(10 + version, 0, version=version), purpose=Purpose.EVALUATION, benchmark="held-out", started_at=11.0
        )
        for version in (1, 3)
    ]
    score = EvaluationScore(
        benchmark="held-out", policy="solver", version=0, score=0.25, episodes=2, failed=0,
        oldest_version=1, newest_version=3,
    )  # fmt: skip
    records: list[Record] = [_grant(step, f"t{step}.solver", at=10.5 + step) for step in range(3)]
    records.append(EvaluationStarted(number=0, versions={"solver": 0}, benchmarks=(_PLAN,), at=10.1))
    records.append(EvaluationEnded(number=0, scores=(score,), at=12.9))
    curve = policy_curves(trained + answered, records)["solver"]
    assert curve.scores == {"held-out": (ScorePoint(2.0, 11.5, 3, 0.25),)}
    assert [point.rollouts for point in curve.steps] == [1, 2, 3]


def test_a_job_that_trained_nothing_has_no_curve() -> None:
    with pytest.raises(NothingTrained):
        policy_curves([header(0, 0)], [])


def test_runs_are_kept_and_one_that_is_repeated_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "results" / "curves.json"
    curves = Curves(example="e", runs=()).with_run(_run(seed=1)).with_run(_run(seed=0, reward=0.2))
    write_curves(curves, path)
    read = read_curves(path, example="e").with_run(_run(seed=1, reward=0.9))
    assert read == Curves(example="e", runs=(_run(seed=0, reward=0.2), _run(seed=1, reward=0.9)))
    assert read.command == "python -m examples.curves e --seeds 0 1"
    assert read_curves(tmp_path / "none.json", example="e") == Curves(example="e", runs=())


def test_the_mean_reaches_as_far_as_all_lines_do() -> None:
    across, up = mean_line([([0, 10], [0.0, 1.0]), ([2, 6], [0.0, 0.0])])
    assert (across[0], across[-1]) == (2.0, 6.0)
    assert up[0] == pytest.approx(0.1)
    assert up[-1] == pytest.approx(0.3)


def test_the_same_runs_give_the_same_picture(tmp_path: Path) -> None:
    curves = Curves(example="e", runs=(_run("a"), _run("b", reward=0.8)))
    for name in ("one.svg", "two.svg"):
        draw(curves, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    assert "generated rollouts" in text


def test_the_summary_has_a_line_for_each_policy_with_the_range_over_seeds() -> None:
    curves = Curves(example="e", runs=(_run(seed=0), _run(seed=1, reward=0.8), _run("other")))
    head, _, table = summary(curves).partition("\n\n")
    assert "--seeds 0 1" in head
    assert table.splitlines()[2:] == [
        "| job.yaml | solver | 0 1 | 3 | 16 | 0.50 to 0.80 → 0.50 to 0.80 | 0.10 → 0.50 to 0.80 |",
        "| other.yaml | solver | 0 | 3 | 16 | 0.50 → 0.50 | 0.10 → 0.50 |",
    ]
