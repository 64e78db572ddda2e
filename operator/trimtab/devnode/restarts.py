"""Whether a container that ended is started again, and after how long."""

from __future__ import annotations

from enum import StrEnum

from trimtab.devnode.pod_spec import Role

_FIRST_S = 0.5
_LONGEST_S = 30.0
# An instance that lived this long has recovered from whatever made the earlier ones crash.
STABLE_AFTER_S = 30.0


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


def backoff_s(crashes: int) -> float:
    """After the first, second ... crash in a row. Shorter than a kubelet's: on a laptop somebody is watching."""
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(max(0, crashes - 1), 30))
