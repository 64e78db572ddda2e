"""What is told as the last error: the newest, without flapping, and what only made pods wait as long as it does."""

from __future__ import annotations

from dataclasses import replace

from trimtab.operator.plan.last_error import error_to_tell, latest_error, newest
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.troubles import Trouble

FULL = Trouble(reason="Unschedulable", message="no node fits", since=50.0)
WAITS = ObservedPod(name="a", phase=Phase.PENDING, ready=False, trouble=FULL)
CRASHED = ObservedPod(name="b", phase=Phase.RUNNING, crashed_at=60.0, exit_code=1, message="engine exited with 1")


def test_what_keeps_a_pod_waiting_is_told_and_goes_with_it() -> None:
    said = error_to_tell([WAITS], None, now=1000.0)
    assert said is not None
    assert (said.reason, said.pod, said.time.timestamp()) == ("Unschedulable", "a", 50.0)
    assert error_to_tell([WAITS], said, now=2000.0) == said, "looked at later it is the same"
    assert error_to_tell([replace(WAITS, trouble=None)], said, now=3000.0) is None


def test_what_has_failed_stays_told() -> None:
    said = error_to_tell([CRASHED], None, now=1000.0)
    assert said is not None
    assert (said.reason, said.time.timestamp()) == ("ContainerFailed", 60.0)
    assert error_to_tell([], said, now=2000.0) == said
    older = replace(CRASHED, name="c", crashed_at=30.0)
    assert error_to_tell([older], said, now=2000.0) == said, "an older one does not take its place"


def test_the_newest_is_told() -> None:
    both = error_to_tell([WAITS, CRASHED], None, now=1000.0)
    assert both is not None
    assert both.pod == "b"
    later = replace(WAITS, trouble=replace(FULL, since=70.0))
    waits = error_to_tell([later, CRASHED], both, now=1000.0)
    assert waits is not None
    assert waits.pod == "a"


def test_what_no_restart_mends_is_told_before_all_else() -> None:
    wrong = replace(
        CRASHED, misconfigured=True, exit_code=78, trouble=Trouble(reason="CrashLoopBackOff", message="", since=60.0)
    )
    later = replace(WAITS, trouble=replace(FULL, since=70.0))
    said = error_to_tell([wrong, later], None, now=1000.0)
    assert said is not None
    assert said.reason == "Misconfigured"
    assert newest([said], error_to_tell([later], None, now=1.0)) == said


def test_a_pod_that_is_told_to_stop_is_not_at_fault() -> None:
    assert latest_error([replace(CRASHED, stopping=True)], now=1.0) is None
    assert error_to_tell([replace(WAITS, stopping=True)], None, now=1.0) is None
