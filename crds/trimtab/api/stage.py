"""A stage: what is computed about rows between rollout and trainer, by pods of a pool, and where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import ListSet, Rule
from trimtab.api.scalars import MemberName, Plugin, PositiveSeconds

MAX_STAGES = 32
# What an RLJob says of its pools, and the operator of a RolloutPool made by hand.
VALUES_ENGINE = (
    "stages that compute Values, or rewards by a policy without a plugin, need engine builtin, and no endpoint for the "
    "policy, in every pool that runs them: other engines have no value head"
)
LOGPROBS_ENGINE = (
    "stages that compute Logprobs need engine builtin or sglang, and no endpoint for the policy, in every pool that "
    "runs them: others do not tell the logprobs of given tokens"
)

Computes = Literal["Logprobs", "Values", "Reward", "TurnRewards", "Filter", "Custom"]


class Stage(ApiModel):
    """One node of the job's graph. It gets whole groups once all their rows, and the columns it needs, are there."""

    rules = (
        Rule(
            "!(self.computes in ['Logprobs', 'Values']) || has(self.policy)",
            "policy is required with computes Logprobs and Values: it says whose model computes them",
            ".policy",
        ),
        Rule(
            "!(self.computes in ['Logprobs', 'Values']) || !has(self.plugin)",
            "plugin does not apply with computes Logprobs and Values: the policy's engine computes them",
            ".plugin",
        ),
        Rule(
            "!(self.computes in ['Filter', 'Custom']) || has(self.plugin)",
            "plugin is required with computes Filter and Custom",
            ".plugin",
        ),
        Rule(
            "!(self.computes in ['Reward', 'TurnRewards']) || has(self.plugin) || has(self.policy)",
            "plugin or policy is required with computes Reward and TurnRewards",
            ".plugin",
        ),
    )

    name: MemberName
    """Name of the stage, unique in the job, and of its column."""
    computes: Computes
    """Logprobs: of every trained token under the policy. Values: what the policy's value head says at every trained
    token. Reward: replaces that of each row. TurnRewards: of each trained turn. Filter: which rows are kept. Custom: a
    column for an algorithm of your own."""
    needs: Annotated[tuple[MemberName, ...], ListSet(), Field(max_length=32)] = ()
    """Stages that must be done with a group before this one gets it. They stand earlier in the list."""
    rows: Annotated[tuple[MemberName, ...], ListSet(), Field(max_length=32)] = ()
    """Policies whose rows it gets; empty, those of all that learn."""
    policy: MemberName | None = None
    """The model that is asked. With Reward and TurnRewards and no plugin it has a value head, and what that says at the
    end of the row, or of each turn, is the reward."""
    plugin: Plugin | None = None
    """Code of your own, from where the workflow's comes."""
    per: Literal["Row", "Group"] = "Group"
    """What a plugin is called with: a row, or all rows of a group at once."""
    pool: MemberName | None = None
    """The pool whose pods run it; absent, every pool that serves rollouts."""
    timeout_seconds: PositiveSeconds = 300
    """Seconds that one group may take. After that it has failed: it is tried again, and quarantined in the end."""

    @property
    def asks_values(self) -> bool:
        """Whether it needs the value head of its policy."""
        return self.computes == "Values" or (self.computes in ("Reward", "TurnRewards") and self.plugin is None)
