"""Which stages the algorithms of a job may name, as rules of the RLJob: ones that compute what is asked for, about the
rows that the policy is trained on.

Names are listed once, in a list of one list, and then looked up, as in the rules of stages, where that is cheaper.
"""

from __future__ import annotations

from trimtab.api.rules import Rule

_FIELDS = {
    "kl.stage": ("has(policy.algorithm.kl.stage)", "Logprobs"),
    "distill.stage": ("has(policy.algorithm.distill)", "Logprobs"),
    "critic.stage": ("has(policy.algorithm.critic)", "Values"),
}
# Whether `policy` learns from the column of `stage`. By names alone: the server prices texts that are put together at
# all that a request may hold.
_USES = (
    "("
    + " || ".join(f"({asked} && policy.algorithm.{field} == stage.name)" for field, (asked, _) in _FIELDS.items())
    + ")"
)
_CRITICS = "[self.policies.filter(policy, policy.algorithm.name == 'critic').map(policy, policy.name)]"
_MIXED = "[self.data.mix.map(mix, mix.policy)]"
_ROWS = (
    "stages[].rows must have every policy whose rows are trained on with the stage's column: without it no row is "
    "trained on"
)


def _computed(field: str, *, asked: str, computes: str) -> Rule:
    return Rule(
        f"[self.stages.filter(stage, stage.computes == '{computes}').map(stage, stage.name)].all(known, "
        f"self.policies.all(policy, !{asked} || policy.algorithm.{field} in known))",
        f"policies[].algorithm.{field} must name a stage that computes {computes}",
        ".policies",
    )


COLUMN_RULES = (
    *(_computed(field, asked=asked, computes=computes) for field, (asked, computes) in _FIELDS.items()),
    Rule(
        f"{_MIXED}.all(mixed, self.policies.all(policy, policy.name in mixed || "
        f"self.stages.all(stage, size(stage.rows) == 0 || policy.name in stage.rows || !{_USES})))",
        _ROWS,
        ".stages",
    ),
    Rule(
        "self.data.mix.all(mix, self.stages.all(stage, size(stage.rows) == 0 || "
        f"!self.policies.exists(policy, policy.name == mix.policy && {_USES}) || "
        "mix.streams.all(stream, stream.policy in stage.rows)))",
        _ROWS,
        ".stages",
    ),
    Rule(
        f"{_CRITICS}.all(critics, self.workflow.roles.all(role, !(role.policy in critics)))",
        "workflow.roles[].policy must not be a critic: it has a value head and nothing to say",
        ".workflow.roles",
    ),
    Rule(
        f"{_CRITICS}.all(critics, self.stages.all(stage, stage.computes != 'Logprobs' || !(stage.policy in critics)))",
        "stages that compute Logprobs must not ask a critic: it has a value head and no probabilities",
        ".stages",
    ),
)
