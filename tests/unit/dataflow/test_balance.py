"""Balance reports and progress, from the books."""

from __future__ import annotations

import pytest

from tests.support.dataflow.books import GROUP, Feed, header, ledger
from tests.support.dataflow.jobs import job
from tests.support.dataflow.stages import column, stage
from trimtab.api.data import Replay as ReplaySettings
from trimtab.dataflow.balance import Mark, balance_report, step_progress
from trimtab.dataflow.ledger.records import StepGranted, StepTimed
from trimtab.dataflow.reporter import BalanceGauges
from trimtab.dataflow.selection.contract import Selection
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.dataflow.selection.replay import Replay
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.balance import Branch, StageLoad
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State


def member(name: str, *, version: int | None = 2, role: Role = Role.ROLLOUT, pool: str = "local") -> MemberHeartbeat:
    return MemberHeartbeat(
        member_id=name,
        job="job",
        role=role,
        pool=pool if role is Role.ROLLOUT else None,
        state=State.READY,
        versions={} if version is None else {"solver": version},
        started_at=1.0,
        sent_at=2.0,
    )


JOB = job(autoscaling={"maintainer": {"policy": "ThreeZone"}})
READY = {"pod-0": 31.0, "pod-1": 15.0}


def trained(steps: int, *, wait_s: float, surplus: int = 0, selection: Selection | None = None) -> tuple[Feed, Mark]:
    feed = Feed(ledger(max_staleness=8, selection=selection))
    mark = Mark.of(feed.ledger, "solver", now=10.0)
    for step in range(steps):
        feed.issue(2 + surplus)
        for task in range(feed.ledger.issued - 2 - surplus, feed.ledger.issued):
            feed.complete(task, version=step, reward=0.5)
        granted = feed.ledger.propose("solver", now=1.0)
        assert isinstance(granted, StepGranted)
        feed.ledger.apply(granted)
        feed.ledger.apply(
            StepTimed(policy="solver", step=step, ranks=2, wait_seconds=2 * wait_s, step_seconds=20.0, at=1.0)
        )
    return feed, mark


@pytest.mark.parametrize(
    ("wait_s", "surplus", "branch", "target"),
    [(5.0, 0, Branch.GROW, 8), (0.7, 0, Branch.HOLD, 4), (0.0, 2, Branch.SHRINK, 3), (0.0, 0, Branch.SHRINK, 4)],
)
def test_a_window_is_judged_by_its_own_numbers(wait_s: float, surplus: int, branch: Branch, target: int) -> None:
    feed, mark = trained(3, wait_s=wait_s, surplus=surplus)
    until = Mark.of(feed.ledger, "solver", now=40.0)
    members = [*(member(f"pod-{number}") for number in range(4)), member("trainer", role=Role.TRAINER)]
    members.append(member("other-policy", version=None))
    report = balance_report(feed.ledger, JOB, policy="solver", since=mark, until=until, members=members, ready_s=READY)
    assert decode(encode(report), type(report)) == report
    assert (report.branch, report.current, report.maintainer, report.target) == (branch, 4, "ThreeZone", target)
    assert (report.first_step, report.last_step, report.wall_seconds) == (0, 2, 30.0)
    assert report.wait_fraction == pytest.approx(wait_s / 10.0)
    assert report.consumed.samples == 12
    assert report.accepted.samples == report.produced.samples == 12 + 3 * surplus * GROUP
    assert [instance.version_lag for instance in report.instances] == [1] * 4
    assert [instance.availability for instance in report.instances] == [1.0, 0.5, 0.0, 0.0]
    assert report.buffered == 3 * surplus * GROUP
    assert report.room == (job().spec.data.max_staleness + 1) * job().spec.data.batch_size


def test_only_three_zones_ask_for_a_number_by_a_report_alone() -> None:
    feed, mark = trained(3, wait_s=5.0)
    until = Mark.of(feed.ledger, "solver", now=40.0)
    agent = {"model": "m", "apiKeySecret": {"name": "anthropic", "key": "key"}}
    for maintainer, name in (({}, "Trim"), ({"type": "Agent", "agent": agent}, "Agent")):
        of = job(autoscaling={"maintainer": maintainer})
        report = balance_report(feed.ledger, of, policy="solver", since=mark, until=until, members=[], ready_s={})
        assert (report.branch, report.maintainer, report.target) == (Branch.GROW, name, None)


def test_what_is_trained_once_more_asks_for_no_instances() -> None:
    """Of 12 samples that are consumed 4 are replayed, and 12 are made: a third of the fleet is too much."""
    replay = Replay(ReplaySettings(ratio=0.5), Fresh({"solver": {"solver": 1.0}}, seed=0))
    feed, mark = trained(3, wait_s=0.0, selection=replay)
    until = Mark.of(feed.ledger, "solver", now=40.0)
    members = [member(f"pod-{number}") for number in range(6)]
    report = balance_report(feed.ledger, JOB, policy="solver", since=mark, until=until, members=members, ready_s=READY)
    assert (report.accepted.samples, report.consumed.samples, report.replayed) == (12, 12, 4)
    assert (report.branch, report.target) == (Branch.SHRINK, 5), "two thirds of six, and the margin"


def test_what_was_dropped_is_advice_and_still_counts_as_accepted() -> None:
    feed, mark = trained(1, wait_s=0.0, surplus=1)
    feed.ledger.trainers["solver"].drop(("t2.solver",))
    until = Mark.of(feed.ledger, "solver", now=40.0)
    report = balance_report(feed.ledger, JOB, policy="solver", since=mark, until=until, members=[], ready_s={})
    assert report.stale_skipped == GROUP
    assert report.accepted.samples == 3 * GROUP


def test_progress_describes_the_step_it_is_written_for() -> None:
    feed, _ = trained(2, wait_s=2.0)
    feed.issue(3)
    feed.complete(4, version=1, reward=1.0)
    feed.complete(5, version=2, reward=0.0)
    feed.arrive(header(6, 0))
    granted = feed.ledger.propose("solver", now=1.0)
    assert granted is not None
    feed.ledger.apply(granted)
    groups = feed.ledger.trainers["solver"].allotments(2)
    progress = step_progress(feed.ledger, JOB, policy="solver", step=2, groups=groups, now=3.0)
    assert decode(encode(progress), type(progress)) == progress
    assert (progress.reward, progress.staleness, progress.max_staleness) == (0.5, 0.5, 1)
    assert (progress.samples, progress.buffered, progress.running) == (12, 0, GROUP)
    assert progress.wait_fraction == pytest.approx(0.2)


def test_parts_of_the_reward_are_means_over_the_episodes_that_have_them() -> None:
    feed, _ = trained(1, wait_s=0.0)
    feed.issue(2)
    for task in (2, 3):
        for part, value in enumerate((0.0, 1.0)):
            feed.arrive(header(task, 0, part=part, parts=2, reward_parts={"answer": value, "format": 1.0}))
        feed.arrive(header(task, 1, reward_parts={"answer": 0.0}))
    granted = feed.ledger.propose("solver", now=1.0)
    assert granted is not None
    feed.ledger.apply(granted)
    groups = feed.ledger.trainers["solver"].allotments(1)
    progress = step_progress(feed.ledger, JOB, policy="solver", step=1, groups=groups, now=3.0)
    assert progress.reward_parts == {"answer": 0.25, "format": 1.0}
    metrics = Metrics()
    BalanceGauges(metrics).show_step(progress)
    shown = {"policy": "solver", "part": "answer"}
    assert metrics.registry.get_sample_value("trimtab_step_reward_part", shown) == 0.25


def test_episodes_without_rows_are_no_reason_to_shrink() -> None:
    """Half of the episodes bring nothing to learn; the trainer takes all there is."""
    feed = Feed(ledger())
    mark = Mark.of(feed.ledger, "solver", now=10.0)
    feed.issue(2)
    for task in (0, 1):
        feed.arrive(header(task, 0, parts=0))
        feed.arrive(header(task, 1))
    granted = feed.ledger.propose("solver", now=1.0)
    assert granted is not None
    feed.ledger.apply(granted)
    feed.ledger.apply(StepTimed(policy="solver", step=0, wait_seconds=0.0, step_seconds=10.0, at=20.0))
    until = Mark.of(feed.ledger, "solver", now=40.0)
    members = [member(f"pod-{number}") for number in range(4)]
    report = balance_report(feed.ledger, JOB, policy="solver", since=mark, until=until, members=members, ready_s=READY)
    assert report.consumed.samples == 2
    assert (report.branch, report.target) == (Branch.SHRINK, 4)


def test_samples_newer_than_a_resumed_trainer_are_not_stale() -> None:
    feed, _ = trained(1, wait_s=0.0)
    feed.issue(2)
    for task in (2, 3):
        feed.complete(task, version=7)
    granted = feed.ledger.propose("solver", now=1.0)
    assert granted is not None
    feed.ledger.apply(granted)
    groups = feed.ledger.trainers["solver"].allotments(1)
    assert step_progress(feed.ledger, JOB, policy="solver", step=1, groups=groups, now=3.0).staleness == 0.0


def test_pods_of_stages_alone_are_no_rollout_instances() -> None:
    own = {"name": "own", "computes": "Custom", "plugin": {"entrypoint": "a:B"}, "pool": "scorers"}
    of = job(pools=[{"name": "local"}, {"name": "scorers", "rollouts": False}], stages=[own])
    feed, mark = trained(2, wait_s=1.0)
    until = Mark.of(feed.ledger, "solver", now=40.0)
    members = [member("pod-0"), member("pod-1", pool="scorers"), member("lent", pool="by-hand")]
    report = balance_report(feed.ledger, of, policy="solver", since=mark, until=until, members=members, ready_s=READY)
    assert [instance.member_id for instance in report.instances] == ["pod-0", "lent"]
    assert report.current == 2


def test_a_report_has_a_line_for_each_stage_that_its_rows_go_through() -> None:
    stages = (stage("reference"), stage("grade", "Reward", needs=["reference"]), stage("other", rows=["judge"]))
    feed = Feed(ledger(policies={"solver": 1, "judge": 1}, stages=stages))
    feed.issue(4)
    for task in range(4):
        feed.complete(task)
    ids = [tuple(f"t{task}.solver.{index}.0" for index in range(GROUP)) for task in range(4)]
    feed.ledger.column_arrived(1, column("reference", "t0.solver", ids[0]))
    mark = Mark.of(feed.ledger, "solver", now=10.0)
    feed.ledger.column_arrived(2, column("reference", "t1.solver", ids[1]))
    feed.ledger.column_arrived(3, column("reference", "t2.solver", ids[2], error="engine.dead"))
    feed.ledger.column_arrived(4, column("grade", "t0.solver", ids[0], rewards=[0.0, 1.0]))
    until = Mark.of(feed.ledger, "solver", now=40.0)
    report = balance_report(
        feed.ledger, job(policies=2), policy="solver", since=mark, until=until, members=[], ready_s={}
    )
    assert report.stages == (
        StageLoad(stage="reference", waiting=1, done=1, failed=1),
        StageLoad(stage="grade", waiting=1, done=1, failed=0),
    )
    assert report.staged == 2 * GROUP, "t1 and t3: of the others one is done and one was given up"
    assert decode(encode(report), type(report)) == report


def test_pods_of_stages_alone_are_told_apart_from_those_that_bring_samples() -> None:
    own = {"name": "own", "computes": "Custom", "plugin": {"entrypoint": "a:B"}, "pool": "scorers"}
    of = job(pools=[{"name": "local"}, {"name": "scorers", "rollouts": False}], stages=[own])
    feed, mark = trained(1, wait_s=1.0)
    report = balance_report(
        feed.ledger,
        of,
        policy="solver",
        since=mark,
        until=Mark.of(feed.ledger, "solver", now=40.0),
        members=[member("pod-0"), member("s-0", version=None, pool="scorers")],
        ready_s={"pod-0": 30.0, "s-0": 15.0},
    )
    assert [one.member_id for one in report.instances] == ["pod-0"]
    assert [(one.member_id, one.pool, one.availability) for one in report.stage_pods] == [("s-0", "scorers", 0.5)]
