"""Whether a container that ended is started again, and after how long."""

from __future__ import annotations

from enum import StrEnum

from trimtab.devcluster.pod.spec import Role
from trimtab.fabric import restarts
from trimtab.fabric.backoff import FullJitter

# Shorter than a kubelet's: on a laptop a person is watching.
BACKOFF = FullJitter(base_s=1.0, cap_s=30.0)
_STABLE_S = 30.0


class RestartPolicy(StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


def policy_of(role: Role, *, pod_policy: RestartPolicy) -> RestartPolicy:
    """Sidecars always live; an init container that did its work is done whatever the pod's policy."""
    if role is Role.SIDECAR:
        return RestartPolicy.ALWAYS
    if role is Role.INIT and pod_policy is RestartPolicy.ALWAYS:
        return RestartPolicy.ON_FAILURE
    return pod_policy


def starts_again(policy: RestartPolicy, *, exit_code: int) -> bool:
    return policy is RestartPolicy.ALWAYS or (policy is RestartPolicy.ON_FAILURE and exit_code != 0)


def restarts_of(policy: RestartPolicy) -> restarts.RestartPolicy:
    def gives_up(exit_code: int | None) -> bool:
        return exit_code is not None and not starts_again(policy, exit_code=exit_code)

    return restarts.RestartPolicy(backoff=BACKOFF, stable_s=_STABLE_S, gives_up=gives_up)
