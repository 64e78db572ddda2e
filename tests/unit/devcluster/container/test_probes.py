from __future__ import annotations

from trimtab.devcluster.container.probes import ProbeCounter, ProbeTiming


def test_the_verdict_changes_after_a_row() -> None:
    timing = ProbeTiming.of({"successThreshold": 2, "failureThreshold": 3})
    counter = ProbeCounter(timing, verdict=False)
    results = [True, False, True, True, False, False, True, False, False, False]
    verdicts = []
    for result in results:
        counter.count(result)
        verdicts.append(counter.verdict)
    assert verdicts == [False, False, False, True, True, True, True, True, True, False]


def test_defaults_are_those_of_kubernetes() -> None:
    timing = ProbeTiming.of({})
    assert (timing.initial_delay_s, timing.period_s, timing.timeout_s) == (0, 10, 1)
    assert (timing.success_threshold, timing.failure_threshold) == (1, 3)
