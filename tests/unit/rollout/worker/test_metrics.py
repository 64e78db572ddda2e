from __future__ import annotations

from dataclasses import dataclass

from trimtab.fabric.metrics import Metrics
from trimtab.rollout.worker.metrics import RolloutMetrics


@dataclass
class _Worker:
    in_flight: int = 2
    allowance: int = 8


@dataclass
class _Line:
    version: int
    lag: int


def test_the_first_task_in_quarantine_is_an_increase() -> None:
    metrics = Metrics()
    rollout = RolloutMetrics(metrics)

    def quarantined() -> float | None:
        return metrics.registry.get_sample_value("trimtab_rollout_groups_total", {"outcome": "quarantined"})

    assert quarantined() == 0
    rollout.quarantined()
    assert quarantined() == 1


def test_versions_and_their_lag_are_read_when_somebody_looks() -> None:
    metrics = Metrics()
    line = _Line(version=3, lag=0)
    RolloutMetrics(metrics).watch(_Worker(), {"solver": line})

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"trimtab_rollout_{name}", {"policy": "solver"})

    assert (value("weight_version"), value("weight_lag")) == (3, 0)
    line.lag = 2
    assert (value("weight_version"), value("weight_lag")) == (3, 2)
