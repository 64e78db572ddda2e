"""What a failed attempt means: another one, counted or free, or the end of the job."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from enum import StrEnum

from trimtab.api.failure import FailurePolicy
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.restarts import RestartPolicy
from trimtab.operator.plan.pods import ObservedPod


class Verdict(StrEnum):
    RESTART = "Restart"
    RESTART_FREE = "RestartFree"
    FAIL = "Fail"


def judge(policy: FailurePolicy, failed: Sequence[ObservedPod]) -> Verdict:
    """Of pods that failed by themselves, at least one. A pod that was taken away drags its group down with it, so one
    of those makes the attempt free, whatever the others say.
    """
    if any(pod.misconfigured for pod in failed):
        return Verdict.FAIL
    if any(pod.disrupted for pod in failed):
        return Verdict.RESTART_FREE
    codes = {pod.exit_code for pod in failed}
    for rule in policy.on_exit:
        if codes & set(rule.exit_codes):
            return Verdict(rule.action)
    return Verdict.RESTART


def backoff_s(policy: FailurePolicy, *, failures: int, seed: str) -> float:
    """Before the restart that follows this many counted failures. The same for the same seed, which names the attempt,
    at every reconcile; trainers that failed together have others."""
    uniform = random.Random(seed).uniform  # noqa: S311 - not for secrets
    backoff = FullJitter(base_s=policy.backoff_seconds, cap_s=policy.max_backoff_seconds, uniform=uniform)
    return RestartPolicy(backoff=backoff, stable_s=math.inf).delay_s(failures)
