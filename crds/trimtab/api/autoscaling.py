"""How the fleet trims itself from the trainer's waiting fraction, and the record of every decision."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import Rule
from trimtab.api.scalars import (
    Count,
    CountOrPercent,
    Fraction,
    MemberName,
    PositiveSeconds,
    Replicas,
    Seconds,
    SecretKey,
    Url,
)

Mode = Literal["Off", "DryRun", "Auto"]


class Agent(ApiModel):
    """A language model as maintainer. It proposes; the same bounds and rate limits as for the policy apply; any error,
    timeout or spent budget falls back to the policy."""

    model: Annotated[str, Field(min_length=1, max_length=128)]
    """Model asked, such as `claude-opus-4-6`."""
    api_key_secret: SecretKey
    """Secret key with the API key."""
    base_url: Url | None = None
    """Messages API endpoint, which is sent the key; absent, Anthropic's."""
    prompt_additions: Annotated[str, Field(max_length=16_384)] = ""
    """Text added to the agent's instructions, such as what you know about your clusters."""
    approval: Literal["Apply", "Propose"] = "Propose"
    """Apply: proposals take effect at once. Propose: they wait until a person sets the annotation
    `rl.trimtab.dev/approve-proposal` on the job to status.autoscaling.proposal.id."""
    max_tokens: Annotated[int, Field(ge=4096, le=10_000_000)] = 40_000
    """Tokens per decision, over all its requests: read, from a cache or not, and written."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    """Seconds per decision."""


class Maintainer(ApiModel):
    """Who decides."""

    rules = (
        Rule("self.type != 'Agent' || has(self.agent)", "agent is required with type Agent", ".agent"),
        Rule("self.type == 'Agent' || !has(self.agent)", "agent applies only with type Agent", ".agent"),
    )

    type: Literal["Policy", "Agent"] = "Policy"
    """Policy: a formula. Agent: a language model, with the policy as its fallback."""
    policy: Literal["Trim", "ThreeZone"] = "Trim"
    """ThreeZone is AstraFlow's formula as published, on one report at a time. Trim looks for the smallest fleet that
    keeps the trainer waiting at most tauLow of its time: it damps noise, knows speed, cost and start-up time of pools,
    and uses the samples that wait for the trainer to try less and to order more just in time."""
    agent: Agent | None = None
    """The language model."""


class ScaleUp(ApiModel):
    """Limits on growth."""

    paused: bool = False
    """Recommend, but do not grow."""
    stabilization_seconds: Seconds = 0
    """Growth takes the lowest recommendation of this many seconds. A starving trainer costs most, so the default is
    0."""
    max_change: CountOrPercent = "100%"
    """Replicas that may be added in one period, as a number or a share of the current ones, rounded up."""
    period_seconds: PositiveSeconds = 60
    """Length of the period that maxChange counts in."""


class ScaleDown(ApiModel):
    """Limits on shrinking."""

    paused: bool = False
    """Recommend, but do not shrink."""
    stabilization_seconds: Seconds = 300
    """Shrinking takes the highest recommendation of this many seconds, so that one lucky window costs no capacity."""
    max_change: CountOrPercent = "25%"
    """Replicas that may be removed in one period, as a number or a share of the current ones, rounded up."""
    period_seconds: PositiveSeconds = 60
    """Length of the period that maxChange counts in."""


class Autoscaling(ApiModel):
    """Three zones by waiting fraction w: above tauHigh grow, below tauLow shrink, between them hold."""

    rules = (
        Rule("self.tauLow < self.tauHigh", "tauLow must be below tauHigh", ".tauLow"),
        Rule(
            "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas",
            ".minReplicas",
        ),
        Rule(
            "self.mode != 'Auto' || has(self.maxReplicas)",
            "maxReplicas is required with mode Auto: it bounds what the job may cost",
            ".maxReplicas",
        ),
    )

    mode: Mode = "Off"
    """Off: pools keep their replicas. DryRun: decisions are recorded in status and not carried out. Auto: they are
    carried out."""
    maintainer: Maintainer = Maintainer()
    """Who decides."""
    tau_low: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Waiting fraction below which the fleet may be larger than the trainer needs; what Trim aims at."""
    tau_high: Annotated[float, Field(gt=0, lt=1)] = 0.10
    """Waiting fraction above which the trainer starves."""
    shrink_margin: Annotated[float, Field(ge=1, le=10)] = 1.10
    """Factor kept above what consumption needs when shrinking. Trim needs it only where reports do not say how many
    samples wait for the trainer: else those are its margin."""
    window_steps: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Trainer steps in one balance report."""
    min_replicas: Replicas = 1
    """Fewest rollout replicas, over all pools."""
    max_replicas: Replicas | None = None
    """Most rollout replicas, over all pools."""
    scale_up: ScaleUp = ScaleUp()
    """Limits on growth."""
    scale_down: ScaleDown = ScaleDown()
    """Limits on shrinking."""
    cooldown_seconds: Seconds = 60
    """Seconds after a change in which no other is made, so that its effect is seen first."""
    report_timeout_seconds: PositiveSeconds = 900
    """A balance report older than this counts as missing. Missing reports never shrink the fleet."""


class PoolDecision(ApiModel):
    """The share of one pool in a decision."""

    name: MemberName
    """Name of the pool in the job."""
    current: Count
    """Replicas when the decision was made."""
    target: Count
    """Replicas decided on."""


class Proposal(ApiModel):
    """What an agent maintainer wants and a person has not approved yet."""

    id: Annotated[str, Field(max_length=64)]
    """Value of the approving annotation."""
    replicas: Count
    """Size proposed, over all pools."""
    reason: Annotated[str, Field(max_length=2048)]
    """Why, in the agent's words."""
    time: datetime
    """When it was proposed. It is given up after reportTimeoutSeconds."""
    pools: Annotated[tuple[PoolDecision, ...], Field(max_length=256)] = ()
    """The proposal pool by pool."""
    victims: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=256)] = ()
    """Pods that should go first."""


class AutoscalingStatus(ApiModel):
    """The latest decision, also in DryRun."""

    mode: Mode
    """Mode it was made in."""
    current: Count
    """Replicas over all pools when it was made."""
    recommended: Count
    """What the maintainer wants, before bounds and rate limits."""
    bounded: Count
    """What is left after bounds, stabilisation and rate limits; carried out in mode Auto."""
    reason: Annotated[str, Field(max_length=128)]
    """Why, in one CamelCase word, such as `TrainerStarving`, `WithinBand` or `ReportMissing`."""
    message: Annotated[str, Field(max_length=2048)]
    """Why, in a sentence with the numbers."""
    maintainer: Literal["Policy", "Agent"] = "Policy"
    """Who decided; Policy also when the agent fell back to it."""
    waiting_fraction: Fraction | None = None
    """Waiting fraction it was made from: the largest of the policies'."""
    pools: Annotated[tuple[PoolDecision, ...], Field(max_length=256)] = ()
    """The decision pool by pool."""
    proposal: Proposal | None = None
    """An agent's proposal that waits for approval."""
    last_report_time: datetime | None = None
    """When the balance report was made that it rests on."""
    last_decision_time: datetime | None = None
    """When it was made."""
    last_scale_time: datetime | None = None
    """When the fleet last changed size."""
    cooldown_until: datetime | None = None
    """No change before this time."""
