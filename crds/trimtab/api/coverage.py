"""Whether a RolloutPool made by hand can run what it is there for. What the job's own pools must have, the rules of the
RLJob say, in the same words.
"""

from __future__ import annotations

from trimtab.api.job import RLJobSpec
from trimtab.api.placement import policies_of, stages_of
from trimtab.api.pool import ENDPOINT_OF_LEARNER, IDLE_POOL, MISSING_ENGINE, MISSING_MODEL, UNKNOWN_POLICY, PoolSettings
from trimtab.api.stage import LOGPROBS_ENGINE, VALUES_ENGINE


def cannot_serve(spec: RLJobSpec, pool: PoolSettings, *, name: str) -> str | None:
    """Why the pool cannot run the job's episodes or stages; None when it can."""
    policies = {policy.name: policy for policy in spec.policies}
    endpoints = {engines.policy for engines in pool.engines if engines.endpoint is not None}
    served = {engines.policy for engines in pool.engines}
    if not served <= policies.keys():
        return UNKNOWN_POLICY
    if any(not policies[policy].frozen for policy in endpoints):
        return ENDPOINT_OF_LEARNER
    if not pool.rollouts and not stages_of(spec, pool, name=name):
        return IDLE_POOL
    for policy in policies_of(spec, pool, name=name):
        if served and policy.name not in served:
            return f"pool {name} has no engine for policy {policy.name}{MISSING_ENGINE}"
        if policy.model is None and policy.name not in endpoints:
            return MISSING_MODEL
    for stage in stages_of(spec, pool, name=name):
        asked_elsewhere = stage.policy in endpoints
        if stage.asks_values and (pool.engine.name != "builtin" or asked_elsewhere):
            return VALUES_ENGINE
        if stage.computes == "Logprobs" and (pool.engine.name == "openai" or asked_elsewhere):
            return LOGPROBS_ENGINE
    return None
