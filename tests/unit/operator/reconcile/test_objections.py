"""What was refused is tried again seldom, and what has changed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tests.support.dataflow.jobs import job
from tests.support.operator.objects import pool, rollout_pod
from trimtab.operator.plan.actions import Action, RemovePod, StartPod
from trimtab.operator.reconcile.objections import _BACKOFF, Objection, Objections, retry_delay_s

JOB = job()
QUOTA = Objection(reason="PodRefused", message="exceeded quota")
STARTS = [StartPod(rollout_pod(JOB, pool(JOB), ordinal)) for ordinal in range(3)]


def _attempts(*, until: float, uniform: float) -> list[float]:
    """When something is tried that is always refused, looked at eight times a second."""
    backoff = replace(_BACKOFF, uniform=lambda low, high: low + uniform * (high - low))
    objections: Objections[str] = Objections(delay_s=lambda times: retry_delay_s(times, backoff=backoff))
    tried = []
    for now in (tick / 8 for tick in range(int(until * 8))):
        due, _ = objections.allowed("key", STARTS, now=now)
        if due:
            tried.append(now)
            objections.record("key", QUOTA, due, now=now)
    return tried


def test_after_the_first_ten_there_is_one_attempt_a_minute_whatever_wakes_the_key() -> None:
    for uniform in (0.0, 0.5, 1.0):
        tried = _attempts(until=900, uniform=uniform)
        later = tried[10:]
        assert len(later) > 10
        assert all(60.0 <= after - before <= 60.2 for before, after in pairwise(later)), uniform
        assert tried[3] < 3.0, "the first ones are soon"


def test_delays_are_spread() -> None:
    seen = {retry_delay_s(4) for _ in range(20)}
    assert len(seen) > 10
    assert all(0.8 <= delay <= 1.6 for delay in seen)
    assert retry_delay_s(10**6) == 60.0


def _allowed(
    objections: Objections[str], actions: Sequence[Action], *, now: float
) -> tuple[list[Action], float | None]:
    return objections.allowed("key", actions, now=now)


def test_only_what_was_refused_waits() -> None:
    objections: Objections[str] = Objections(delay_s=lambda times: 60.0)
    until = objections.record("key", QUOTA, STARTS[1:], now=0.0)
    remove = RemovePod("old")
    assert _allowed(objections, [remove, *STARTS], now=1.0) == ([remove, STARTS[0]], until)
    assert _allowed(objections, [remove], now=1.0) == ([remove], None)
    assert _allowed(objections, STARTS, now=60.0) == (STARTS, None)
    changed = StartPod(replace(STARTS[1].pod, revision="another"))
    assert _allowed(objections, [changed], now=1.0) == ([changed], None), "another template is tried at once"


def test_what_is_refused_beside_others_that_wait_waits_with_them() -> None:
    objections: Objections[str] = Objections(delay_s=lambda times: 60.0 * times)
    until = objections.record("key", QUOTA, STARTS[1:], now=0.0)
    assert objections.record("key", QUOTA, STARTS[:1], now=30.0) == until
    assert _allowed(objections, STARTS, now=59.0) == ([], until)


def test_an_objection_that_is_withdrawn_begins_anew() -> None:
    objections: Objections[str] = Objections(delay_s=lambda times: 1.0 * times)
    objections.record("key", QUOTA, STARTS, now=0.0)
    assert objections.record("key", QUOTA, STARTS, now=5.0) == 7.0
    assert objections.of("key") == QUOTA
    assert objections.withdraw("key")
    assert not objections.withdraw("key")
    assert objections.of("key") is None
    assert objections.record("key", QUOTA, STARTS, now=9.0) == 10.0
