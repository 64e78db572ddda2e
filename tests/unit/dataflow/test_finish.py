"""When a policy has had enough."""

from __future__ import annotations

import pytest

from tests.support.dataflow.books import Feed, header, ledger
from tests.support.dataflow.jobs import spec
from trimtab.dataflow.finish import continued, finish
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import PolicyContinued, PolicyFinished, StepGranted, StepTrained


def run(steps: int, *, reward: float = 1.0, trained: bool = True) -> Feed:
    feed = Feed(ledger())
    for step in range(steps):
        feed.issue(2)
        for task in (2 * step, 2 * step + 1):
            feed.complete(task, version=step, reward=reward)
        granted = feed.ledger.propose("solver", now=1.0)
        assert isinstance(granted, StepGranted)
        feed.ledger.apply(granted)
        if trained or step < steps - 1:
            feed.ledger.apply(StepTrained(policy="solver", step=step))
    return feed


def verdict(books: Ledger, *, total_prompts: int | None = None, **fields: object) -> str | None:
    record = finish(books, "solver", spec=spec(**fields), total_prompts=total_prompts)
    return None if record is None else record.reason


def test_max_steps_ends_after_the_last_step_is_trained() -> None:
    assert verdict(run(2).ledger, maxSteps=3) is None
    assert verdict(run(3, trained=False).ledger, maxSteps=3) is None
    assert verdict(run(3).ledger, maxSteps=3) == "maxSteps 3 done"


@pytest.mark.parametrize(("steps", "reward", "ends"), [(3, 0.9, True), (2, 0.9, False), (5, 0.79, False)])
def test_target_reward_needs_a_whole_window(steps: int, reward: float, ends: bool) -> None:
    reason = verdict(run(steps, reward=reward).ledger, targetReward=0.8, autoscaling={"windowSteps": 3})
    assert (reason is not None) == ends


def test_prompts_that_are_used_up_end_the_policy_when_no_batch_can_come() -> None:
    feed = run(2)
    assert verdict(feed.ledger, total_prompts=4) is not None
    feed.issue(1)
    assert verdict(feed.ledger, total_prompts=5) is None, "one group is running"
    feed.complete(4, version=2)
    assert "data.epochs" in (verdict(feed.ledger, total_prompts=5) or "")
    feed.issue(1)
    feed.complete(5, version=2)
    assert verdict(feed.ledger, total_prompts=6) is None, "two groups are a batch"
    assert verdict(feed.ledger, total_prompts=None) is None


def test_failed_groups_do_not_keep_a_used_up_job_waiting() -> None:
    feed = run(1)
    feed.issue(1)
    for index in range(2):
        feed.arrive(header(2, index, error="engine-gone"))
    assert verdict(feed.ledger, total_prompts=3) is not None


def test_it_ends_once() -> None:
    feed = run(3)
    feed.ledger.apply(PolicyFinished(policy="solver", reason="enough"))
    assert verdict(feed.ledger, maxSteps=3) is None


def test_a_finished_policy_goes_on_when_it_is_to_reach_more_and_there_are_prompts() -> None:
    def goes_on(feed: Feed, *, total_prompts: int | None = None, **fields: object) -> list[PolicyContinued]:
        return continued(feed.ledger, spec=spec(**fields), total_prompts=total_prompts)

    feed = run(3)
    assert goes_on(feed, maxSteps=9) == [], "it has not finished"
    feed.ledger.apply(PolicyFinished(policy="solver", reason="maxSteps 3 done"))
    assert goes_on(feed, maxSteps=3) == []
    assert goes_on(feed, maxSteps=9, targetReward=0.5, autoscaling={"windowSteps": 3}) == []
    assert goes_on(feed, maxSteps=9, total_prompts=6) == []
    (record,) = goes_on(feed, maxSteps=9, total_prompts=7)
    feed.ledger.apply(record)
    assert feed.ledger.trainers["solver"].finished is None
    feed.issue(2)
    for task in (6, 7):
        feed.complete(task, version=3)
    granted = feed.ledger.propose("solver", now=1.0)
    assert isinstance(granted, StepGranted)
    assert (granted.step, granted.groups) == (3, ("t6.solver", "t7.solver"))
