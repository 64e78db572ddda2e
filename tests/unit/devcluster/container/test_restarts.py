"""Whether and when a container is started again, and what becomes of it when the node was away."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.devcluster.pods import a_pod
from trimtab.devcluster.container.restarts import RestartPolicy, policy_of, restarts_of, starts_again
from trimtab.devcluster.container.state import Running, Terminated, Waiting
from trimtab.devcluster.pod.resumption import resumed
from trimtab.devcluster.pod.spec import Role

ALWAYS, ON_FAILURE, NEVER = RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE, RestartPolicy.NEVER


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [(ALWAYS, 0, True), (ALWAYS, 1, True), (ON_FAILURE, 0, False), (ON_FAILURE, 1, True), (NEVER, 1, False)],
)
def test_policies(policy: RestartPolicy, code: int, again: bool) -> None:
    assert starts_again(policy, exit_code=code) is again


@pytest.mark.parametrize(
    ("role", "pod_policy", "own"),
    [
        (Role.MAIN, ALWAYS, ALWAYS),
        (Role.INIT, ALWAYS, ON_FAILURE),
        (Role.INIT, NEVER, NEVER),
        (Role.SIDECAR, NEVER, ALWAYS),
    ],
)
def test_roles_have_their_own(role: Role, pod_policy: RestartPolicy, own: RestartPolicy) -> None:
    assert policy_of(role, pod_policy=pod_policy) is own


def test_containers_that_crash_together_wait_longer_each_time_and_not_all_the_same() -> None:
    always = restarts_of(ALWAYS)
    for crashes, ceiling in ((1, 1.0), (2, 2.0), (3, 4.0), (7, 30.0), (10_000, 30.0)):
        waits = {always.delay_s(crashes) for _ in range(20)}
        assert len(waits) > 10
        assert ceiling / 2 <= min(waits) < max(waits) <= ceiling


@pytest.mark.parametrize(
    ("policy", "code", "ends"), [(ALWAYS, 0, False), (ON_FAILURE, 0, True), (ON_FAILURE, 1, False)]
)
def test_the_pods_policy_says_which_ends_are_final(policy: RestartPolicy, code: int, ends: bool) -> None:
    assert (restarts_of(policy).after(3, exit_code=code, lived_s=1.0, now=0.0) is None) is ends


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
