"""What the stages of a job must have in common with its policies, pools and roles, as rules of the RLJob.

Names are listed once, in a list of one list, and then looked up: a loop per name costs the API server ten seconds for a
job at all limits.
"""

from __future__ import annotations

from trimtab.api.pool import ENDPOINT_OF_LEARNER, IDLE_POOL, MISSING_ENGINE, MISSING_MODEL, UNKNOWN_POLICY
from trimtab.api.rules import Rule
from trimtab.api.stage import LOGPROBS_ENGINE, MAX_STAGES, VALUES_ENGINE

_PLACES = str(list(range(MAX_STAGES)))
IN_ORDER = Rule(
    f"{_PLACES}.all(at, at >= size(self) || self[at].needs.all(need, "
    f"{_PLACES}.exists(before, before < at && self[before].name == need)))",
    "stages[].needs must name stages that stand earlier in the list, so that no stage waits for itself",
)

_NAMES = "[self.policies.map(policy, policy.name)]"
_FROZEN = "[self.policies.filter(policy, policy.frozen).map(policy, policy.name)]"
_PLAYED = (
    "(size(self.workflow.roles) == 0 ? self.policies.map(policy, policy.name) : "
    "self.workflow.roles.map(role, role.policy))"
)
_ASKED = "[self.stages.filter(stage, has(stage.policy)).map(stage, stage.policy)]"
# Of every pool that serves rollouts.
_COMMON = f"[{_PLAYED} + self.stages.filter(stage, has(stage.policy) && !has(stage.pool)).map(stage, stage.policy)]"
_ELSEWHERE = "[pool.engines.filter(engines, has(engines.endpoint)).map(engines, engines.policy)]"
_RUNS = "(has(stage.pool) ? stage.pool == pool.name : pool.rollouts)"
_ASKS_VALUES = "(stage.computes == 'Values' || (stage.computes in ['Reward', 'TurnRewards'] && !has(stage.plugin)))"


def _of_all_needed(condition: str) -> str:
    """CEL of whether `condition`, about `name`, holds for each policy that `pool` needs an engine for."""
    of_stage = condition.replace("name ", "stage.policy ")
    return (
        f"((!pool.rollouts || common.all(name, {condition})) && "
        f"self.stages.all(stage, !has(stage.pool) || stage.pool != pool.name || !has(stage.policy) || {of_stage}))"
    )


_COVERED = (
    "(pool.engines.size() == 0 || [pool.engines.map(engines, engines.policy)]"
    f".all(served, {_of_all_needed('name in served')}))"
)
# The first pool and the first policy that it lacks. Lists of names, not of pools: the server prices what they may hold.
_NEEDED = (
    "((pool.rollouts && policy.name in common) || self.stages.exists(stage, "
    "has(stage.pool) && stage.pool == pool.name && has(stage.policy) && stage.policy == policy.name))"
)
_LACKING = (
    f"self.policies.map(policy, {_NEEDED} && !pool.engines.exists(engines, engines.policy == policy.name) "
    "? policy.name : '').filter(name, name != '')[0]"
)
_UNCOVERED = (
    f"{_COMMON}.map(common, "
    f"self.pools.map(pool, {_COVERED} ? '' : 'pool ' + pool.name + ' has no engine for policy ' + {_LACKING})"
    f".filter(told, told != '')[0])[0] + '{MISSING_ENGINE}'"
)


def _engines_can(stages: str, *, engine: str, message: str) -> Rule:
    return Rule(
        f"self.pools.all(pool, {_ELSEWHERE}.all(elsewhere, self.stages.all(stage, !{stages} || !{_RUNS} || "
        f"({engine} && !(has(stage.policy) && stage.policy in elsewhere)))))",
        message,
        ".stages",
    )


STAGE_RULES = (
    Rule(
        f"{_NAMES}.all(names, self.pools.all(pool, pool.engines.all(engines, engines.policy in names)))",
        UNKNOWN_POLICY,
        ".pools",
    ),
    Rule(
        f"{_COMMON}.all(common, self.pools.all(pool, {_COVERED}))",
        "pools[].engines must have every policy that the pool's roles and stages ask: an episode has all its roles, "
        "and a stage its policy, in one pod",
        ".pools",
        told=_UNCOVERED,
    ),
    Rule(
        f"{_FROZEN}.all(frozen, self.pools.all(pool, "
        "pool.engines.all(engines, !has(engines.endpoint) || engines.policy in frozen)))",
        ENDPOINT_OF_LEARNER,
        ".pools",
    ),
    Rule(
        "[self.policies.filter(policy, !has(policy.model)).map(policy, policy.name)].all(bare, "
        f"{_COMMON}.all(common, self.pools.all(pool, {_ELSEWHERE}.all(elsewhere, "
        f"{_of_all_needed('(!(name in bare) || name in elsewhere)')}))))",
        MISSING_MODEL,
        ".policies",
    ),
    Rule(
        f"{_NAMES}.all(names, self.stages.all(stage, !has(stage.policy) || stage.policy in names))",
        "stages[].policy must name policies of this job",
        ".stages",
    ),
    Rule(
        f"{_FROZEN}.all(frozen, [{_PLAYED}].all(played, "
        "self.stages.all(stage, stage.rows.all(row, row in played && !(row in frozen)))))",
        "stages[].rows must name policies of this job that learn and have a role: others have no rows",
        ".stages",
    ),
    Rule(
        "[self.pools.map(pool, pool.name)].all(pools, self.stages.all(stage, !has(stage.pool) || stage.pool in pools))",
        "stages[].pool must name pools of this job",
        ".stages",
    ),
    Rule(
        "self.pools.exists(pool, pool.rollouts)",
        "at least one pool must serve rollouts: not all of them may have rollouts: false",
        ".pools",
    ),
    Rule(
        "[self.stages.filter(stage, has(stage.pool)).map(stage, stage.pool)]"
        ".all(named, self.pools.all(pool, pool.rollouts || pool.name in named))",
        IDLE_POOL,
        ".pools",
    ),
    _engines_can(
        _ASKS_VALUES,
        engine="pool.engine.name == 'builtin'",
        message=VALUES_ENGINE,
    ),
    _engines_can(
        "(stage.computes == 'Logprobs')",
        engine="pool.engine.name != 'openai'",
        message=LOGPROBS_ENGINE,
    ),
    Rule(
        f"[self.stages.filter(stage, has(stage.policy) && {_ASKS_VALUES}).map(stage, stage.policy)].all(valued, "
        "self.workflow.roles.all(role, !(role.policy in valued)) && self.stages.all(stage, "
        f"!has(stage.policy) || !(stage.policy in valued) || {_ASKS_VALUES}))",
        "a policy that stages ask for values has a value head in place of its words: it can have no role in "
        "workflow.roles, and no other stage can ask it",
        ".stages",
    ),
    Rule(
        f"{_FROZEN}.all(frozen, [self.policies.filter(policy, policy.algorithm.credit.type == 'Turn')"
        f".map(policy, policy.name)].all(by_turns, [{_PLAYED}].all(played, self.stages.all(stage, "
        "stage.computes != 'TurnRewards' || (size(stage.rows) > 0 ? stage.rows : played)"
        ".all(row, row in by_turns || row in frozen)))))",
        "stages that compute TurnRewards need rows of policies with algorithm.credit.type Turn: others have no turns",
        ".stages",
    ),
    Rule(
        f"[{_PLAYED}].all(played, self.data.mix.all(mix, mix.streams.all(stream, stream.policy in played)))",
        "data.mix[].streams must name policies that have a role: others have no samples",
        ".data.mix",
    ),
    Rule(
        f"size(self.workflow.roles) > 0 || {_ASKED}.all(asked, size(asked) == 0)",
        "workflow.roles is required where stages ask a policy: it says which policies speak in episodes",
        ".workflow.roles",
    ),
    Rule(
        f"size(self.workflow.roles) == 0 || {_ASKED}.all(asked, "
        "[self.workflow.roles.map(role, role.policy)].all(played, [self.data.mix.map(mix, mix.policy)].all(mixed, "
        "self.policies.all(policy, policy.name in played || "
        "(policy.name in asked && (policy.frozen || policy.name in mixed))))))",
        "workflow.roles must give every policy a role, except one that a stage asks and that is frozen or has "
        "data.mix: without, it would never get a sample",
        ".workflow.roles",
    ),
)
