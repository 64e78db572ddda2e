"""What becomes of a pod's containers when the node was away."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.devcluster.pods import a_pod
from trimtab.devcluster.container.state import Running, Terminated, Waiting
from trimtab.devcluster.pod.resumption import resumed

RUNNING = {"running": {"startedAt": "2026-11-01T00:00:00Z"}}
DONE = {"terminated": {"exitCode": 0, "reason": "Completed"}}
BROKEN = {"terminated": {"exitCode": 1, "reason": "Error"}}
BACKING_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}


def found(
    policy: str, state: dict[str, Any], *, last: dict[str, Any] | None = None, restarts: int = 2
) -> dict[str, Any]:
    pod = a_pod(restartPolicy=policy)
    status = {"name": "main", "restartCount": restarts, "state": state, "lastState": last or {}}
    pod["status"] = {"phase": "Running", "containerStatuses": [status]}
    return pod


def test_a_new_pod_begins_afresh() -> None:
    assert resumed(a_pod(), now=0.0) == ({}, None)


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_what_ran_is_started_again_and_counted(policy: str) -> None:
    states, failure = resumed(found(policy, RUNNING), now=9e9)
    state = states["main"]
    assert failure is None
    assert (state.restarts, state.state) == (3, Waiting(reason="ContainerCreating"))
    assert state.last is not None
    assert (state.last.exit_code, state.last.reason) == (137, "NodeRestarted")


def test_what_may_not_be_started_again_has_failed() -> None:
    states, failure = resumed(found("Never", RUNNING), now=9e9)
    assert failure is not None
    assert failure.reason == "NodeRestarted"
    assert isinstance(states["main"].state, Terminated)


def test_what_was_done_stays_done() -> None:
    states, failure = resumed(found("OnFailure", DONE), now=9e9)
    assert failure is None
    assert states["main"].ended is not None
    assert states["main"].ended.exit_code == 0


def test_what_waited_to_be_started_again_is() -> None:
    states, _ = resumed(found("Always", BACKING_OFF, last=BROKEN), now=9e9)
    assert states["main"].restarts == 3
    assert not isinstance(states["main"].state, Running)


def test_a_pod_that_never_began_may_begin_though_its_policy_is_never() -> None:
    assert resumed(found("Never", {"waiting": {"reason": "ContainerCreating"}}, restarts=0), now=0.0) == ({}, None)
