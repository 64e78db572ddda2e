"""Whole decisions: what is done, what is said, and that sequences of them keep every promise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.operator.evidence import NOW, Plant, auto, fleet, home, report
from trimtab.api.autoscaling import Autoscaling
from trimtab.api.conditions import ConditionType
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.operator.autoscale.decide import Decision, decide, settle, watch
from trimtab.operator.autoscale.fleet import Fleet
from trimtab.operator.autoscale.history import History, restored
from trimtab.operator.autoscale.recommendation import Recommendation

LONG_AGO = History(since=0.0)


def decision(
    *reports: BalanceReport,
    config: Autoscaling | None = None,
    pools: Fleet | None = None,
    history: History = LONG_AGO,
    missing: tuple[str, ...] = (),
    now: float = NOW,
) -> Decision:
    given_reports = {one.policy: one for one in reports} | dict.fromkeys(missing)
    return decide(given_reports, config=config or auto(), fleet=pools or fleet(home(8)), history=history, now=now)


def said(made: Decision, kind: ConditionType) -> tuple[bool | None, str]:
    return next((one.holds, one.reason) for one in made.statements if one.type is kind)


def test_growth_is_recorded_and_explained() -> None:
    made = decision(report(wait=0.2, seconds=125.0))
    assert made.targets == {"home": 10}
    status = made.status
    assert (status.current, status.recommended, status.bounded, status.reason) == (8, 10, 10, "TrainerStarving")
    assert status.waiting_fraction == 0.2
    assert [(pool.name, pool.current, pool.target) for pool in status.pools] == [("home", 8, 10)]
    assert status.last_scale_time is not None
    assert status.cooldown_until is not None
    assert len(made.events) == 1
    assert made.events[0].reason == "SuccessfulRescale"
    assert made.events[0].message.startswith(
        "New size: 10; reason: TrainerStarving; home 8 → 10: the trainer of solver"
    )
    assert said(made, ConditionType.ABLE_TO_SCALE) == (True, "Rescaling")
    assert said(made, ConditionType.SCALING_ACTIVE) == (True, "ValidMetricFound")
    assert said(made, ConditionType.SCALING_LIMITED) == (False, "DesiredWithinRange")


def test_a_dry_run_says_what_it_would_do_and_does_not_claim_to_have_done_it() -> None:
    made = decision(report(wait=0.2, seconds=125.0), config=auto(mode="DryRun"))
    assert (made.status.mode, made.status.current, made.status.bounded) == ("DryRun", 8, 10)
    assert made.status.message.endswith("(mode DryRun: not carried out)")
    assert made.status.last_scale_time is None
    assert made.events == ()
    assert said(made, ConditionType.SCALING_ACTIVE) == (True, "DryRun")
    assert said(made, ConditionType.ABLE_TO_SCALE) == (True, "ReadyForNewScale")


@pytest.mark.parametrize("policy", ["Trim", "ThreeZone"])
def test_missing_and_stale_reports_hold(policy: str) -> None:
    config = auto(maintainer={"policy": policy})
    none = decision(missing=("solver",), config=config)
    assert (none.targets, none.status.reason) == ({"home": 8}, "ReportMissing")
    assert said(none, ConditionType.SCALING_ACTIVE) == (False, "ReportMissing")
    old = decision(report(accepted=2000, at=NOW - 901), config=config)
    assert (old.targets, old.status.reason) == ({"home": 8}, "ReportStale")
    assert "more than reportTimeoutSeconds 900 ago" in old.status.message


def test_one_policy_without_a_report_keeps_what_the_others_would_give_up() -> None:
    rich = report(accepted=2000, buffered=800)
    assert decision(rich, missing=("critic",)).targets == {"home": 8}
    assert decision(rich).status.recommended < 8


def test_the_most_starving_policy_decides() -> None:
    made = decision(report(wait=0.12, seconds=100 / 0.88), report(wait=0.3, seconds=100 / 0.7, policy="critic"))
    assert made.targets == {"home": 12}
    assert "critic" in made.status.message
    assert made.status.waiting_fraction == 0.3


def test_limits_are_named() -> None:
    made = decision(report(wait=0.2, seconds=125.0), config=auto(max_replicas=9))
    assert (made.status.recommended, made.status.bounded) == (10, 9)
    assert said(made, ConditionType.SCALING_LIMITED) == (True, "TooManyReplicas")
    assert "maxReplicas 9 allows 9" in made.status.message
    young = decision(report(accepted=1600, buffered=300), history=History(since=NOW - 10))
    assert young.targets == {"home": 8}
    assert said(young, ConditionType.ABLE_TO_SCALE) == (True, "ScaleDownStabilized")
    assert young.requeue_at == NOW + 15
    cooling = decision(report(wait=0.2, seconds=125.0), history=replace(LONG_AGO, cooldown_until=NOW + 9))
    assert cooling.targets == {"home": 8}
    assert said(cooling, ConditionType.ABLE_TO_SCALE) == (False, "CoolingDown")


def test_scaling_by_hand_is_answered() -> None:
    first = decision(report())
    by_hand = decision(report(), pools=fleet(home(3)), history=first.history, now=NOW + 15)
    assert said(by_hand, ConditionType.ABLE_TO_SCALE)[1] == "ScaledByHand"
    message = next(one.message for one in by_hand.statements if one.type is ConditionType.ABLE_TO_SCALE)
    assert "pool home was scaled by hand from 8 to 3" in message
    assert "autoscaling.mode to Off" in message
    assert [event.reason for event in by_hand.events] == ["ScaledByHand"]
    later = decision(report(), pools=fleet(home(3)), history=by_hand.history, now=NOW + 30)
    assert later.events == ()
    assert said(later, ConditionType.ABLE_TO_SCALE)[1] == "ScaledByHand"


@pytest.mark.parametrize(("target", "size"), [(500, 9), (10**12, 9), (-3, 1), (9, 9)])
def test_an_agents_proposal_meets_the_same_rails(target: int, size: int) -> None:
    config, pools, reports = auto(max_replicas=9, scale_down={"max_change": 100}), fleet(home(8)), {"solver": report()}
    seen = watch(reports, config=config, fleet=pools, history=LONG_AGO, now=NOW)
    advice = Recommendation(
        targets={"home": target, "nobodys": 7}, reason="AgentSays", message="I want it all", maintainer="Agent"
    )
    made = settle(advice, reports, config=config, fleet=pools, before=LONG_AGO, history=seen, now=NOW)
    assert made.targets == {"home": size}
    assert made.status.maintainer == "Agent"


reports_or_none = st.none() | st.builds(
    report,
    wait=st.floats(0, 1),
    accepted=st.integers(0, 3000),
    consumed=st.integers(0, 3000),
    pools=st.fixed_dictionaries({"a": st.integers(0, 20), "b": st.integers(0, 5)}),
    in_flight=st.integers(0, 8),
    buffered=st.none() | st.integers(0, 900),
    first_step=st.integers(0, 100).map(lambda step: 10 * step),
    seconds=st.floats(0, 1000),
    policy=st.just("solver"),
)


@st.composite
def configs(draw: st.DrawFn) -> Autoscaling:
    least = draw(st.integers(0, 6))
    change = st.integers(0, 8) | st.sampled_from(["10%", "25%", "100%"])
    return auto(
        mode=draw(st.sampled_from(["Auto", "Auto", "Auto", "DryRun"])),
        maintainer={"policy": draw(st.sampled_from(["Trim", "ThreeZone"]))},
        min_replicas=least,
        max_replicas=least + draw(st.integers(0, 20)),
        cooldown_seconds=draw(st.sampled_from([0, 60, 300])),
        scale_up={
            "paused": draw(st.sampled_from([False, False, True])),
            "max_change": draw(change),
            "period_seconds": draw(st.sampled_from([30, 120])),
            "stabilization_seconds": draw(st.sampled_from([0, 60])),
        },
        scale_down={
            "paused": draw(st.sampled_from([False, False, True])),
            "max_change": draw(change),
            "period_seconds": draw(st.sampled_from([30, 120])),
            "stabilization_seconds": draw(st.sampled_from([0, 300])),
        },
    )


proposals = st.none() | st.fixed_dictionaries({"a": st.integers(-5, 40), "b": st.integers(-5, 10)})


@given(
    configs(),
    st.lists(st.tuples(st.floats(1, 150), reports_or_none, st.booleans(), proposals), min_size=1, max_size=12),
    st.data(),
)
def test_every_sequence_keeps_every_promise(
    config: Autoscaling,
    turns: list[tuple[float, BalanceReport | None, bool, dict[str, int] | None]],
    data: st.DataObject,
) -> None:
    """Whoever recommends: a formula, or somebody who makes numbers up."""
    assert config.max_replicas is not None
    least, most = config.min_replicas, config.max_replicas
    in_b = data.draw(st.integers(0, min(3, most)), label="replicas of b")
    in_a = data.draw(st.integers(max(0, least - in_b), most - in_b), label="replicas of a")
    sizes = {"a": in_a, "b": in_b}
    history, now = restored(None, now=NOW), NOW
    moves: list[tuple[float, int, int, int]] = []
    for passed, heard, stale, proposed in turns:
        now += passed
        if heard is not None:
            heard = _at(heard, now - (config.report_timeout_seconds + 1 if stale else 0))
        pools = fleet(
            home(sizes["a"], name="a", cost=1.0),
            home(sizes["b"], name="b", ready=0, cost=2.0, max_replicas=3),
        )
        made = _decided(heard, proposed, config=config, pools=pools, history=history, now=now)
        assert made == _decided(heard, proposed, config=config, pools=pools, history=history, now=now)
        total, before = sum(made.targets.values()), sum(sizes.values())
        added = sum(max(0, made.targets[pool] - size) for pool, size in sizes.items())
        removed = sum(max(0, size - made.targets[pool]) for pool, size in sizes.items())
        assert least <= total <= most
        assert 0 <= made.targets["b"] <= 3
        assert (made.status.current, made.status.bounded) == (before, total)
        assert not (removed and (heard is None or stale))
        assert not (added and config.scale_up.paused)
        assert not (removed and config.scale_down.paused)
        assert not (removed and now - NOW < config.scale_down.stabilization_seconds)
        history = made.history
        if config.mode == "Auto":
            if added or removed:
                assert not any(now - at < config.cooldown_seconds for at, *_ in moves)
                moves.append((now, before, added, removed))
            sizes = made.targets
            _within_rates(config, moves)
        else:
            assert made.events == ()


def _decided(
    heard: BalanceReport | None,
    proposed: dict[str, int] | None,
    *,
    config: Autoscaling,
    pools: Fleet,
    history: History,
    now: float,
) -> Decision:
    reports = {"solver": heard}
    if proposed is None:
        return decide(reports, config=config, fleet=pools, history=history, now=now)
    seen = watch(reports, config=config, fleet=pools, history=history, now=now)
    advice = Recommendation(targets=proposed, reason="MadeUp", message="because", maintainer="Agent")
    return settle(advice, reports, config=config, fleet=pools, before=history, history=seen, now=now)


def _within_rates(config: Autoscaling, moves: list[tuple[float, int, int, int]]) -> None:
    for way, limits in ((2, config.scale_up), (3, config.scale_down)):
        for at, *_ in moves:
            period = [move for move in moves if at - limits.period_seconds < move[0] <= at]
            size, change = period[0][1], limits.max_change
            most = change if isinstance(change, int) else -(-max(1, size) * int(change[:-1]) // 100)
            assert sum(move[way] for move in period) <= most


def _at(one: BalanceReport, at: float) -> BalanceReport:
    return BalanceReport(**{name: getattr(one, name) for name in one.__struct_fields__} | {"at": at})


@settings(max_examples=25, deadline=None)
@given(st.floats(1.0, 20.0), st.integers(1, 24), st.sampled_from(["Trim", "ThreeZone"]))
def test_a_constant_workload_gets_a_constant_size(need: float, first: int, policy: str) -> None:
    plant = Plant(need=need, size=first, config=auto(max_replicas=24, maintainer={"policy": policy}))
    plant.windows(80)
    settled = plant.sizes[-20:]
    assert len(set(settled)) == 1
    if policy == "Trim":
        assert settled[0] >= need * 0.95 - 1e-9  # it waits at most tauLow of its time
        assert settled[0] <= max(need * 1.1 + 2, 4)


@pytest.mark.parametrize("first", [1, 24])
def test_it_does_not_hunt(first: int) -> None:
    plant = Plant(need=8.3, size=first, config=auto(max_replicas=24))
    plant.windows(60)
    turns = sum(
        (after[2] - after[1]) * (before[2] - before[1]) < 0
        for before, after in zip(plant.changes, plant.changes[1:], strict=False)
    )
    assert turns <= 2
    assert plant.size in (8, 9)
