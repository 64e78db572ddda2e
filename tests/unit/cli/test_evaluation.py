"""Results on held-out prompts, as people see them."""

from __future__ import annotations

from rich.console import Console

from trimtab.cli.evaluation import rendered
from trimtab.fabric.wire.evaluation import EvaluationResult


def result(benchmark: str, *, version: int, score: float | None, failed: int = 0) -> EvaluationResult:
    return EvaluationResult(
        job="job",
        policy="solver",
        benchmark=benchmark,
        version=version,
        score=score,
        episodes=40,
        failed=failed,
        at=1.0,
    )


def test_a_table_has_a_row_for_each_version_and_a_dash_where_all_failed() -> None:
    console = Console(width=110, force_terminal=False)
    with console.capture() as capture:
        console.print(rendered([result("gsm", version=0, score=0.25), result("gsm", version=50, score=None, failed=3)]))
    header, first, second = capture.get().splitlines()
    assert header.split() == ["policy", "benchmark", "version", "score", "episodes", "failed", "best"]
    assert first.split() == ["solver", "gsm", "0", "0.250", "40", "0", "best"]
    assert second.split() == ["solver", "gsm", "50", "-", "40", "3"]
