"""What the times that rows and heartbeats carry come down to."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.cli.rows import conversation
from trimtab.cli.chronicle.records import Measured
from trimtab.cli.chronicle.story import told
from trimtab.cli.slowness.samples import SampleTime, sample_times
from trimtab.cli.slowness.steps import step_times, step_times_of, weight_times
from trimtab.cli.slowness.verdict import verdict
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.trajectory import Phase


def sample(number: int, *, decode: float, part: int = 0, waits: float | None = 2.0) -> SampleTime:
    """Queued for a second, two of them in prefill, one in the workflow's own code."""
    row = conversation(
        trajectory_id=f"g-{number}.0.{part}", group_id=f"g-{number}", group_index=0, part=part, parts=2, queued_at=99.0,
        started_at=100.0, finished_at=103.0 + decode, phases=(Phase("prefill", 0.0, 2.0), Phase("decode", 2.0, decode)),
    )  # fmt: skip
    return SampleTime(row=row, waits_s=waits)


def trainer(**seconds: float) -> MemberHeartbeat:
    measures = {f"seconds_{name}": value for name, value in seconds.items()}
    return MemberHeartbeat(
        member_id="solver-0", job="j", role=Role.TRAINER, state=State.READY, versions={"solver": 3}, measures=measures,
        started_at=1.0, sent_at=2.0,
    )  # fmt: skip


def test_a_sample_from_its_task_to_its_step_and_the_slowest_apart() -> None:
    samples = [sample(n, decode=1.0) for n in range(9)] + [sample(9, decode=11.0), sample(9, decode=11.0, part=1)]
    (times,) = sample_times(samples)
    assert times.samples == 10, "an episode of two rows counts once"
    assert (times.seconds, times.slowest_seconds) == (pytest.approx(6.0), pytest.approx(15.0))
    assert [share.name for share in times.shares] == ["queue", "prefill", "decode", "own code", "ready"]
    assert [share.seconds for share in times.shares] == pytest.approx([1.0, 2.0, 2.0, 1.0, 2.0])
    assert times.shares[2].slowest_seconds == pytest.approx(11.0)


def test_what_was_not_trained_yet_says_nothing_about_how_long_samples_wait() -> None:
    (times,) = sample_times([sample(0, decode=1.0, waits=None), sample(1, decode=1.0, waits=4.0)])
    assert times.shares[-1].seconds == 4.0


def test_rows_of_a_version_that_did_not_tell_are_left_out() -> None:
    old = msgspec.structs.replace(sample(0, decode=1.0).row, phases=(), queued_at=None)
    assert sample_times([SampleTime(row=old)]) == ()


def test_a_starving_trainer_points_at_what_takes_longest_in_an_episode() -> None:
    (step,) = step_times([trainer(step=10.0, wait=6.0, compute=3.0, update=1.0, upload=0.5)])
    assert step.parts["wait"] == 6.0
    assert step.upload_seconds == 0.5
    said = verdict(step, sample_times([sample(0, decode=30.0)]))
    assert said.startswith("solver: the trainer waits for samples 60% of its time; most of an episode is decode")


def test_a_busy_trainer_needs_no_more_rollouts() -> None:
    (step,) = step_times([trainer(step=10.0, wait=0.5, compute=9.0)])
    assert "busy, mostly with compute; more rollouts would not" in verdict(step, ())


def test_weights_are_told_by_pool() -> None:
    pods = [
        MemberHeartbeat(
            member_id=f"p-{n}", job="j", role=Role.ROLLOUT, pool="p", state=State.READY, started_at=1.0, sent_at=2.0,
            measures={"seconds_refresh": refresh, "seconds_pause": 0.1},
        )
        for n, refresh in enumerate((1.0, 3.0))
    ]  # fmt: skip
    (times,) = weight_times(pods)
    assert (times.pool, times.refresh_seconds, times.pause_seconds) == ("p", 2.0, pytest.approx(0.1))


def test_of_a_run_that_has_ended_its_history_knows_the_steps() -> None:
    values = {"loss": 1.0, "seconds_step": 4.0, "seconds_wait": 1.0}
    (step,) = step_times_of(told([Measured(at=1.0, policy="solver", step=9, values=values, tokens_per_second=5.0)]))
    assert (step.policy, step.seconds, step.parts["wait"]) == ("solver", 4.0, 1.0)
    assert step_times_of(told([])) == ()
