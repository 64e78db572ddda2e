"""Whether and when a container is started again."""

from __future__ import annotations

import pytest

from trimtab.devcluster.container.restarts import RestartPolicy, policy_of, restarts_of, starts_again
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
