"""A run as a chronicle has it: a trainer that starves at first, a fleet that grows, a score that rises."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.cli.chronicle.records import Began, Died, Ended, Fleet, Record, Rescaled, Score, Step, Version, Window
from trimtab.cli.chronicle.story import Story, told
from trimtab.fabric.wire.balance import Branch

START = 1_000_000.0
STEPS = 50
FULL = 1_344_672
DELTA = 420_000
WHY = "the trainer of solver waits 60 % of its time and would wait 55 % for good with what it has"
KILLED = "trainer was killed by SIGKILL"


def began(*, at: float = START, mode: str = "Auto") -> Began:
    return Began(
        at=at, job="quickstart", max_steps=300, target_reward=0.92, max_staleness=2, mode=mode, tau_low=0.05,
        tau_high=0.10, window_steps=5,
    )  # fmt: skip


def step(number: int, *, policy: str = "solver", at: float | None = None) -> Step:
    return Step(
        at=START + 10 + number if at is None else at, policy=policy, step=number, reward=number / STEPS, staleness=1.4,
        waiting=0.6 if number < 20 else 0.08, samples=(number + 1) * 256, buffered=64, running=512,
        tokens=1024, length=4.25, truncated=0.1 if number == STEPS - 1 else 0.0, reward_parts={"right": number / STEPS},
    )  # fmt: skip


def version(number: int, *, policy: str = "solver") -> Version:
    base = number - 1 if number else None
    size = DELTA if number else FULL
    return Version(at=START + 10.5 + number, policy=policy, epoch=1, version=number, base=base, size=size)


def window(last: int) -> Window:
    zone = Branch.GROW if last < 20 else Branch.HOLD
    waiting = 0.6 if last < 20 else 0.08
    return Window(
        at=START + 11 + last,
        policy="solver",
        first_step=last - 4,
        last_step=last,
        seconds=5.0,
        waiting=waiting,
        zone=zone,
    )


def score(number: int, value: float | None, *, failed: int = 0) -> Score:
    return Score(
        at=START + 12 + number, policy="solver", benchmark="held-out", version=number, score=value, episodes=100,
        failed=failed,
    )  # fmt: skip


def fleet(at: float, *, ready: int, wanted: int, cost_per_hour: float | None = None) -> Fleet:
    return Fleet(at=START + at, ready={"local": ready}, wanted={"local": wanted}, cost_per_hour=cost_per_hour)


def rescaled(before: int, after: int, *, at: float, message: str = WHY) -> Rescaled:
    return Rescaled(
        at=START + at, before=before, after=after, reason="TrainerStarving", message=message, maintainer="Policy",
        waiting=0.6,
    )  # fmt: skip


def records() -> Iterator[Record]:
    yield began()
    yield fleet(1, ready=0, wanted=1)
    yield fleet(9, ready=1, wanted=1)
    for number in range(STEPS):
        yield step(number)
        yield version(number)
        if number % 5 == 4:
            yield window(number)
        if number % 10 == 0:
            yield score(number, 0.1 + number / 60)
    yield rescaled(1, 2, at=16)
    yield fleet(16.5, ready=1, wanted=2)
    yield fleet(25, ready=2, wanted=2)
    yield rescaled(2, 3, at=28)
    yield fleet(29, ready=3, wanted=3)


def story() -> Story:
    return told(records())


def died(*, at: float) -> Died:
    return Died(at=START + at, pod="quickstart-solver-trainer-0", why=KILLED)


def ended(outcome: str, *, at: float, why: str = "") -> Ended:
    return Ended(at=START + at, outcome=outcome, why=why)
