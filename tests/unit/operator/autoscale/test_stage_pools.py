"""How many pods a pool of stages alone is given: by its places in use and its queue, within the rails of the others."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.dataflow.jobs import job
from tests.support.operator.scaling import NOW, SCALING, starving
from trimtab.api.autoscaling import Autoscaling
from trimtab.fabric.wire.balance import BalanceReport, Instance, StageLoad
from trimtab.fabric.wire.member import State
from trimtab.operator.autoscale.fleet import Fleet, Pool
from trimtab.operator.autoscale.history import History
from trimtab.operator.autoscale.stage_pools import StageDecision, decide_stages, load_of

PLACES = 4
STAGES = {"scorers": ("reference", "judge")}
CONFIG = Autoscaling.model_validate({**SCALING, "cooldownSeconds": 30, "scaleDown": {"stabilizationSeconds": 0}})


def report(
    *, pods: int, used: float, waiting: int = 0, done: int = 100, at: float = NOW, state: State = State.READY
) -> BalanceReport:
    """`used` are places of each pod, which has as many groups at the end."""
    instances = tuple(
        Instance(
            member_id=f"s-{number}",
            pool="scorers",
            state=state,
            in_flight=round(used),
            mean_in_flight=used,
            capacity=PLACES,
        )
        for number in range(pods)
    )
    loads = (StageLoad(stage="reference", waiting=waiting, done=done), StageLoad(stage="judge"))
    return replace(starving(job(), at=at), stage_pods=instances, stages=loads)


def decision(
    *reports: BalanceReport,
    desired: int = 4,
    history: History | None = None,
    now: float = NOW,
    least: int = 1,
    most: int | None = 8,
) -> StageDecision:
    pool = Pool(name="scorers", desired=desired, ready=desired, min_replicas=least, max_replicas=most)
    return decide_stages(
        {f"solver-{number}": one for number, one in enumerate(reports)},
        stages=STAGES,
        config=CONFIG,
        fleet=Fleet(pools=(pool,)),
        history=history or History(since=NOW - 1000.0),
        now=now,
    )


@pytest.mark.parametrize(
    ("used", "waiting", "target"),
    [
        (2.8, 0, 4),  # 70 % in use
        (2.9, 0, 4),  # within a tenth of it
        (4.0, 16, 6),  # all in use, and none waits beyond them
        (4.0, 66, 8),  # half as many wait as were answered
        (1.4, 0, 3),  # half of what is aimed at: a quarter may go at a time
        (0.0, 0, 3),
        (1.4, 60, 4),  # a queue is no time to shrink
    ],
)
def test_places_in_use_and_the_queue_decide(used: float, waiting: int, target: int) -> None:
    assert decision(report(pods=4, used=used, waiting=waiting)).targets == {"scorers": target}


def test_it_keeps_its_own_bounds() -> None:
    assert decision(report(pods=4, used=4.0, waiting=400), most=5).targets == {"scorers": 5}
    assert decision(report(pods=4, used=0.0), least=4).targets == {"scorers": 4}
    assert decision(report(pods=4, used=4.0, waiting=400), most=None).targets == {"scorers": 4}


def test_pods_on_their_way_are_not_asked_for_twice() -> None:
    assert decision(report(pods=4, used=4.0, waiting=16), desired=7).targets == {"scorers": 7}


def test_a_change_is_looked_at_before_the_next() -> None:
    first = decision(report(pods=4, used=4.0, waiting=16))
    assert [event.reason for event in first.events] == ["SuccessfulRescale"]
    again = report(pods=6, used=4.0, waiting=24, at=NOW + 10)
    soon = decision(again, desired=6, history=first.history, now=NOW + 10)
    assert soon.targets == {"scorers": 6}
    assert soon.requeue_at is not None
    assert "less than 30 s ago" in soon.message
    later = decision(again, desired=6, history=first.history, now=NOW + 61)
    assert later.targets == {"scorers": 8}


def test_missing_and_stale_reports_shrink_nothing() -> None:
    assert decision().targets == {"scorers": 4}
    stale = report(pods=4, used=0.0, at=NOW - 5000.0)
    kept = decision(stale)
    assert kept.targets == {"scorers": 4}
    assert "reportTimeoutSeconds" in kept.message


def test_a_pod_that_does_not_say_how_busy_it_is_decides_nothing() -> None:
    silent = report(pods=4, used=0.0)
    pods = tuple(replace(pod, mean_in_flight=None) for pod in silent.stage_pods)
    assert decision(replace(silent, stage_pods=pods)).targets == {"scorers": 4}


def test_only_pods_that_take_groups_and_the_newest_report_count() -> None:
    old, new = report(pods=4, used=0.0, at=NOW - 50.0), report(pods=2, used=3.0, waiting=10)
    load = load_of({"a": new, "b": old}, pool="scorers", stages=STAGES["scorers"])
    assert load is not None
    assert (load.pods, load.places, load.used, load.queued, load.done) == (2, 8, 6.0, 4, 100)
    starting = report(pods=2, used=0.0, state=State.STARTING)
    assert load_of({"a": starting}, pool="scorers", stages=STAGES["scorers"]) is None


def test_another_hand_is_told_of() -> None:
    first = decision(report(pods=4, used=2.8))
    by_hand = decision(report(pods=4, used=2.8, at=NOW + 1), desired=6, history=first.history, now=NOW + 1)
    assert [event.reason for event in by_hand.events] == ["ScaledByHand"]
