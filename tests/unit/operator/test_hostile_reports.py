"""What the pods of one job report of themselves, however odd, ends no watch and grows no memory without bound."""

from __future__ import annotations

from typing import Any, cast

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import Entry
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.fabric.wire.progress import StepProgress
from trimtab.operator.job_watch import JobWatch

TOPOLOGY = JobTopology("team", "job")


def _watch(**options: Any) -> JobWatch:
    return JobWatch(cast(Bus, None), TOPOLOGY, ["solver"], **options)


def _says(watch: JobWatch, key: str, message: StepProgress | EvaluationResult) -> None:
    watch.note_balance(Entry(key=key, value=encode(message), revision=1))


def _step(number: int, reward: float = 0.5) -> StepProgress:
    return StepProgress(
        job="job", policy="solver", step=number, reward=reward, staleness=0.0, max_staleness=0, wait_fraction=0.0,
        samples=1, buffered=0, running=0, dropped=0, at=1.0,
    )  # fmt: skip


def test_rewards_whose_sum_is_beyond_all_numbers_have_a_mean() -> None:
    watch = _watch()
    for number in range(4):
        _says(watch, TOPOLOGY.progress_key("solver"), _step(number, 1.7e308))
    report = watch.report(window=10).policies["solver"]
    assert report.reward == 1.7e308


def test_only_the_window_of_steps_is_kept() -> None:
    watch = _watch(history=10)
    for number in range(1000):
        _says(watch, TOPOLOGY.progress_key("solver"), _step(number))
    assert [step.step for step in watch.policies["solver"].steps] == list(range(990, 1000))
    assert watch.report(window=10).policies["solver"].step == 1000


def test_benchmarks_without_end_are_not_kept() -> None:
    watch = _watch()
    for number in range(1000):
        result = EvaluationResult(
            job="job", policy="solver", benchmark=f"b{number}", version=1, score=0.5, episodes=1, at=1.0
        )
        _says(watch, TOPOLOGY.balance.name + ".evaluation.x", result)
    assert len(watch.policies["solver"].evaluations) == 32
