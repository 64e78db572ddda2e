"""When a dataflow counts as silent: soon, but not for the faults of others."""

from __future__ import annotations

from trimtab.operator.dataflow_pulse import DataflowPulse
from trimtab.operator.plan.progress import Silences

NAME = "job-dataflow-0"
LOOK_S = 0.5


class Heard:
    """A pulse on a clock of its own, with heartbeats as often as a test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pulse = DataflowPulse(clock=lambda: self.now, look_every_s=LOOK_S)
        self.revision = 0
        self.pulse.expect([(NAME, "first")])

    def beats(self, *, seconds: float, every_s: float = 1.0) -> None:
        end, due = self.now + seconds, self.now + every_s
        while self.now < end:
            self.now += LOOK_S
            if self.now >= due:
                due += every_s
                self.hear()
            assert self.pulse.look() == Silences()

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            self.pulse.look()

    def hear(self) -> None:
        self.revision += 1
        self.pulse.hear(NAME, self.revision)

    def silent_after_s(self, *, most_s: float = 200.0) -> float:
        """Since the last heartbeat."""
        began = self.now
        while (found := self.pulse.look()) == Silences():
            assert self.now - began < most_s
            self.now += LOOK_S
        assert found.ended | found.unheard == {NAME}
        assert bool(found.ended) == (self.revision > 0), "of one that was never heard this is said apart"
        return self.now - began


def test_one_that_beats_every_second_is_silent_after_four() -> None:
    heard = Heard()
    heard.beats(seconds=20.0)
    assert heard.silent_after_s() == 4.0
    heard.hear()
    assert heard.pulse.look() == Silences(), "it speaks again"


def test_one_that_beats_less_often_is_given_three_of_its_gaps() -> None:
    heard = Heard()
    heard.beats(seconds=60.0, every_s=3.0)
    assert heard.silent_after_s() == 9.0


def test_one_that_was_never_heard_is_given_a_minute() -> None:
    heard = Heard()
    assert heard.silent_after_s() == 60.0


def test_what_a_predecessor_said_is_not_a_successors_own() -> None:
    heard = Heard()
    heard.beats(seconds=20.0)
    heard.silent_after_s()
    heard.pulse.expect([(NAME, "second")])
    assert heard.pulse.look() == Silences()
    heard.pulse.hear(NAME, heard.revision)  # the bucket still has it
    heard.passes(59.5)
    assert heard.pulse.look() == Silences()
    heard.passes(0.5)
    assert heard.pulse.look() == Silences(unheard=frozenset({NAME}))


def test_each_replacement_makes_the_next_one_wait_twice_as_long_until_it_is_calm() -> None:
    heard = Heard()
    heard.beats(seconds=20.0)
    waited = []
    for life in ("second", "third", "fourth"):
        waited.append(heard.silent_after_s())
        heard.pulse.expect([(NAME, life)])
        heard.hear()
        heard.beats(seconds=5.0)
    assert waited == [4.0, 8.0, 16.0]
    heard.beats(seconds=700.0)
    assert heard.silent_after_s() == 4.0


def test_nobody_is_silent_while_nobody_can_be_heard() -> None:
    heard = Heard()
    heard.beats(seconds=20.0)
    heard.passes(2.5)
    assert heard.pulse.doubtful == (NAME,)
    heard.pulse.excuse()
    assert heard.pulse.doubtful == ()
    assert heard.silent_after_s() == 4.0, "from when on it could be heard again"


def test_a_reader_that_was_held_up_blames_itself() -> None:
    heard = Heard()
    heard.beats(seconds=20.0)
    heard.now += 30.0
    assert heard.pulse.look() == Silences()
    assert heard.silent_after_s() == 3.5


def test_a_pod_that_is_not_expected_any_more_is_forgotten() -> None:
    heard = Heard()
    heard.beats(seconds=5.0)
    heard.silent_after_s()
    heard.pulse.expect([])
    heard.hear()
    assert heard.pulse.look() == Silences()
