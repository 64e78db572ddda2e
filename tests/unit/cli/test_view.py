"""The terminal view shows what a person needs, from the first second to the last."""

from __future__ import annotations

from rich.console import Console

from trimtab.api.job import PoolStatus
from trimtab.cli.view import render, sparkline
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.operator.job_watch import PolicyView


def shown(policies: dict[str, PolicyView], members: list[MemberHeartbeat], restarts: dict[str, int]) -> str:
    console = Console(width=120, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(
            render(
                "quickstart",
                policies,
                members,
                [PoolStatus(name="local", ready_replicas=1, desired_replicas=2)],
                activity="Training",
                restarts=restarts,
                failing=dict.fromkeys(restarts, "Traceback\nout of luck"),
                elapsed_s=42.0,
                max_steps=300,
            ),
        )
    return capture.get()


def progress(step: int, reward: float) -> StepProgress:
    return StepProgress(
        job="quickstart",
        policy="solver",
        step=step,
        reward=reward,
        staleness=1.4,
        max_staleness=2,
        wait_fraction=0.31,
        samples=(step + 1) * 256,
        buffered=64,
        running=512,
        dropped=0,
        at=1000.0 + step,
    )


def test_before_anything_has_happened() -> None:
    text = shown({"solver": PolicyView()}, [], {})
    assert "quickstart · 42 s" in text
    assert "starting" in text


def test_a_running_job() -> None:
    view = PolicyView()
    view.steps.extend(progress(step, step / 50) for step in range(50))
    view.weights = WeightPointer(
        job="quickstart",
        policy="solver",
        version=49,
        epoch=1,
        manifest_key="m",
        manifest_digest="sha256:" + "0" * 64,
        size_bytes=36_000,
        published_at=1.0,
    )
    worker = MemberHeartbeat(
        member_id="quickstart-local-rollout-0",
        job="quickstart",
        role=Role.ROLLOUT,
        pool="local",
        state=State.READY,
        in_flight=12,
        samples_per_second=480.0,
        tokens_per_second=1_920.0,
        started_at=1.0,
        sent_at=2.0,
    )
    text = shown({"solver": view}, [worker], {"quickstart-local-rollout-0/engine-solver": 2})
    for part in (
        "50/300", "0.980", "31%", "49", "36.0 kB", "1.4 (max 2)", "256", "480/s, 12 in flight, 2 restarts", "█",
        "local 1 of 2, 1,920 tokens/s", "42 s · Training", "rollout-0/engine-solver died", "out of luck",
    ):  # fmt: skip
        assert part in text, part


def test_a_sparkline_shows_the_rise_in_the_room_it_has() -> None:
    line = sparkline([step / 1000 for step in range(1000)], low=0.0, high=1.0, width=20)
    assert len(line) == 20
    assert line[0] == " "
    assert line[-1] == "█"
    assert list(line) == sorted(line)
    assert sparkline([], low=0.0, high=1.0) == ""
