from __future__ import annotations

from trimtab.dataflow.reporter import BalanceGauges
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.progress import StepProgress


def test_what_waits_is_as_of_now_and_a_step_tells_its_staleness() -> None:
    metrics = Metrics()
    gauges = BalanceGauges(metrics)
    waiting = {"buffered": 0, "running": 64}
    gauges.watch(
        "solver",
        bound=4,
        room=320,
        buffered=lambda: waiting["buffered"],
        running=lambda: waiting["running"],
    )

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"trimtab_{name}", {"policy": "solver"})

    assert (value("staleness_bound"), value("buffer_room_samples")) == (4, 320)
    assert (value("buffered_samples"), value("running_samples")) == (0, 64)
    waiting |= {"buffered": 64, "running": 0}
    assert (value("buffered_samples"), value("running_samples")) == (64, 0)

    gauges.show_step(
        StepProgress(
            job="math",
            policy="solver",
            step=9,
            reward=0.5,
            staleness=1.5,
            max_staleness=3,
            wait_fraction=0.1,
            samples=640,
            buffered=128,
            running=32,
            dropped=0,
            at=1.0,
        )
    )
    assert (value("step"), value("step_staleness"), value("step_max_staleness")) == (9, 1.5, 3)
    # A report is of the past: it does not stand in for what waits now.
    assert value("buffered_samples") == 64
