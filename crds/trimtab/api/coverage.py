"""Whether a RolloutPool made by hand can run the episodes of the job it works for. What the job's own pools must have,
the rules of the RLJob say, in the same words.
"""

from __future__ import annotations

from trimtab.api.job import RLJobSpec
from trimtab.api.pool import ENDPOINT_OF_LEARNER, MISSING_ENGINE, MISSING_MODEL, UNKNOWN_POLICY, PoolSettings


def cannot_serve(spec: RLJobSpec, pool: PoolSettings, *, name: str) -> str | None:
    """Why the pool cannot run the job's episodes; None when it can."""
    policies = {policy.name: policy for policy in spec.policies}
    endpoints = {engines.policy for engines in pool.engines if engines.endpoint is not None}
    served = {engines.policy for engines in pool.engines}
    if not served <= policies.keys():
        return UNKNOWN_POLICY
    for policy in spec.policies:
        if served and policy.name not in served:
            return f"pool {name} has no engine for policy {policy.name}{MISSING_ENGINE}"
        if policy.name in endpoints and not policy.frozen:
            return ENDPOINT_OF_LEARNER
        if policy.model is None and policy.name not in endpoints:
            return MISSING_MODEL
    return None
