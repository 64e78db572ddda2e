"""What the pods of a pool have to do: which stages they run, and which policies these and their episodes ask."""

from __future__ import annotations

from trimtab.api.job import RLJobSpec
from trimtab.api.policy import Policy
from trimtab.api.pool import PoolSettings
from trimtab.api.stage import Stage


def roles_of(spec: RLJobSpec) -> dict[str, str]:
    """The policy of each role."""
    named = {role.name: role.policy for role in spec.workflow.roles}
    return named or {policy.name: policy.name for policy in spec.policies}


def policies_with_rows(spec: RLJobSpec) -> tuple[str, ...]:
    """Policies that learn and have a role, in the order of the job."""
    played = set(roles_of(spec).values())
    return tuple(policy.name for policy in spec.learning if policy.name in played)


def rows_of(spec: RLJobSpec, stage: Stage) -> tuple[str, ...]:
    """The policies whose rows the stage gets."""
    return stage.rows or policies_with_rows(spec)


def stages_of(spec: RLJobSpec, pool: PoolSettings, *, name: str) -> tuple[Stage, ...]:
    """Those that pods of the pool run, which has this name in the job."""
    return tuple(stage for stage in spec.stages if (pool.rollouts if stage.pool is None else stage.pool == name))


def policies_of(spec: RLJobSpec, pool: PoolSettings, *, name: str) -> tuple[Policy, ...]:
    """Those that each pod of the pool needs an engine or an endpoint for."""
    needed = set(roles_of(spec).values()) if pool.rollouts else set[str]()
    needed |= {stage.policy for stage in stages_of(spec, pool, name=name) if stage.policy is not None}
    return tuple(policy for policy in spec.policies if policy.name in needed)
