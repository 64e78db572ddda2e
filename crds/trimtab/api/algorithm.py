"""The learning rule of a policy: loss, corrections, optimiser and schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import Rule, at_most_one_of, only_with
from trimtab.api.scalars import Count, Fraction, Location, MemberName, NonNegative, Plugin, Positive, PositiveCount

AlgorithmName = Literal["m2po", "grpo", "drgrpo", "dapo", "ppo", "gspo", "cispo", "rloo", "distill", "critic", "custom"]


class Clip(ApiModel):
    """Trust region on the probability ratio r, as [1 - low, 1 + high]."""

    low: Annotated[float, Field(gt=0, le=1)] | None = None
    """Lower half-width; absent, the algorithm's own: 0.2, and 0.0003 for gspo. For critic, how far a value may fall."""
    high: Annotated[float, Field(gt=0, le=100)] | None = None
    """Upper half-width; absent, the algorithm's own: 0.2, 0.28 for dapo, 0.0004 for gspo. For critic, how far a value
    may rise."""
    dual: Annotated[float, Field(gt=1, le=100)] | None = None
    """Bounds the loss of samples with negative advantage at this multiple of it; absent, there is no bound."""


class Kl(ApiModel):
    """Penalty on the distance to a reference model."""

    rules = (
        at_most_one_of("reference", "stage"),
        only_with("stage", condition="self.coefficient > 0.0", when="with a coefficient above 0"),
    )

    coefficient: NonNegative = 0.0
    """Weight in the loss; 0 asks for no reference model."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the divergence is estimated. k3, the common choice, is never negative, and its gradient is that of the
    divergence the other way round: it stays nearer to what the reference liked. k1 and k2 have the gradient of the
    divergence itself."""
    reference: Location | None = None
    """The reference model; absent, the policy's starting weights. It lies in the trainer's memory."""
    stage: MemberName | None = None
    """The stage that computes the reference's log-probabilities, in the place of a model in the trainer's memory."""


class Correction(ApiModel):
    """Importance weights for what differs between the sampling engine and the trainer: kernels, precision, version."""

    rules = (Rule("self.low < self.high", "low must be below high", ".low"),)

    type: Literal["None", "Truncate", "Mask"] = "Truncate"
    """Truncate: weights are capped at high (TIS). Mask: tokens outside [low, high] are left out (IcePop)."""
    low: NonNegative = 0.0
    """Lowest weight a token keeps with Mask; Truncate has no floor unless this is above 0."""
    high: Positive = 2.0
    """Highest weight of a token."""


class Overlong(ApiModel):
    """What happens to answers near or beyond the length limit."""

    buffer_tokens: Count = 0
    """Length of the zone below the limit in which the reward is lowered linearly; 0 lowers nothing."""
    penalty: NonNegative = 1.0
    """Reward taken off at the limit."""
    mask_truncated: bool = True
    """Leave truncated answers out of the loss; they still count in their group's mean."""


class Credit(ApiModel):
    """What of an episode a token is credited with."""

    rules = tuple(
        Rule(f"self.type == 'Turn' || self.{field} == 1.0", f"{field} applies only with type Turn", f".{field}")
        for field in ("discount", "outcomeWeight")
    )

    type: Literal["Outcome", "Turn"] = "Outcome"
    """Outcome: every token with the reward of its row. Turn: with what its own turn and later ones earned, compared
    with the same turn of the group's other episodes; the workflow says what a turn earned."""
    discount: Fraction = 1.0
    """What a turn's reward is worth one turn earlier."""
    outcome_weight: NonNegative = 1.0
    """Weight of the outcome beside the rewards of turns."""


class Distill(ApiModel):
    """Learning from a teacher on what the policy itself sampled."""

    stage: MemberName
    """The stage that computes the teacher's log-probabilities: how much likelier than the policy the teacher holds a
    token is the token's advantage."""
    reward_weight: NonNegative = 0.0
    """Weight of the advantage that rewards give, beside the teacher's word; 0 learns from the teacher alone."""


class Critic(ApiModel):
    """Advantages from what a critic expects (GAE): a policy whose algorithm is critic, and the stage that asks it."""

    stage: MemberName
    """The stage that computes the critic's values."""
    discount: Fraction = 1.0
    """What a reward is worth one token earlier."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda")] = 0.95
    """How far ahead rewards are looked for before the critic is believed: 0 believes its value of the next token, 1
    waits for the end."""


class Optimizer(ApiModel):
    """AdamW."""

    learning_rate: Annotated[float, Field(gt=0, le=10)] = 1e-6
    """Peak learning rate."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the second moment; below Adam's 0.999 because rewards drift."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Keeps the step finite where gradients vanish."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this global norm."""


class Schedule(ApiModel):
    """Learning rate over trainer steps."""

    rules = (
        Rule(
            "self.type == 'Constant' || has(self.decaySteps)",
            "decaySteps is required for Linear and Cosine",
            ".decaySteps",
        ),
    )

    type: Literal["Constant", "Linear", "Cosine"] = "Constant"
    """Shape after the warm-up."""
    warmup_steps: Count = 0
    """Steps over which the rate rises linearly from 0."""
    decay_steps: PositiveCount | None = None
    """Steps from the end of the warm-up to the lowest rate."""
    final_fraction: Fraction = 0.0
    """Lowest rate, as a share of learningRate."""


class Algorithm(ApiModel):
    """How a policy learns from its batches."""

    rules = (
        only_with("m2Threshold", condition="self.name == 'm2po'", when="with algorithm m2po"),
        only_with(
            "correction",
            condition="!(self.name in ['m2po', 'critic'])",
            when="with algorithms other than m2po and critic",
        ),
        only_with("distill", condition="self.name == 'distill'", when="with algorithm distill"),
        Rule("self.name != 'distill' || has(self.distill)", "distill is required with algorithm distill", ".distill"),
        only_with("critic", condition="self.name in ['ppo', 'critic']", when="with algorithms ppo and critic"),
        Rule("self.name != 'critic' || has(self.critic)", "critic is required with algorithm critic", ".critic"),
        only_with("custom", condition="self.name == 'custom'", when="with algorithm custom"),
        Rule("self.name != 'custom' || has(self.custom)", "custom is required with algorithm custom", ".custom"),
        Rule(
            "self.name != 'critic' || self.kl.coefficient == 0.0",
            "kl does not apply with algorithm critic, which has no probabilities",
            ".kl",
        ),
        Rule(
            "self.name != 'critic' || self.entropyCoefficient == 0.0",
            "entropyCoefficient does not apply with algorithm critic, which has no probabilities",
            ".entropyCoefficient",
        ),
        Rule(
            "self.name != 'critic' || !self.normalizeBatchAdvantages",
            "normalizeBatchAdvantages does not apply with algorithm critic: returns are learned as they are",
            ".normalizeBatchAdvantages",
        ),
        Rule(
            "self.name != 'critic' || !has(self.clip) || !has(self.clip.dual)",
            "clip.dual does not apply with algorithm critic",
            ".clip.dual",
        ),
        Rule(
            "!has(self.critic) || !has(self.normalizeGroupRewards)",
            "normalizeGroupRewards does not apply with a critic, whose values rewards are compared with instead",
            ".normalizeGroupRewards",
        ),
        Rule(
            "!has(self.critic) || self.credit.discount == 1.0",
            "with a critic, set critic.discount instead of credit.discount: it counts tokens, not turns",
            ".credit.discount",
        ),
        Rule(
            "!has(self.distill) || self.distill.rewardWeight > 0.0 || "
            "(self.credit.type == 'Outcome' && !has(self.normalizeGroupRewards))",
            "rewards do not count with distill.rewardWeight 0: set it, or leave out credit and normalizeGroupRewards",
            ".distill.rewardWeight",
        ),
        only_with(
            "clip", condition="!(self.name in ['m2po', 'rloo'])", when="with algorithms other than m2po and rloo"
        ),
    )

    name: AlgorithmName = "m2po"
    """The loss. m2po bounds the second moment of the log ratio and stays stable on stale data; grpo is the common
    baseline; drgrpo drops its length and deviation biases; dapo clips higher and averages over tokens; ppo is decoupled
    for stale data; gspo works on whole sequences; cispo clips weights instead of updates; rloo is REINFORCE with a
    leave-one-out baseline; distill learns from a teacher, token by token; critic trains a value head on the samples
    of another policy, for that one's ppo; custom is a recipe of your own."""
    m2_threshold: Annotated[float, Field(gt=0, le=10)] | None = None
    """Largest second moment of the log ratio over a step; absent, 0.04."""
    clip: Clip | None = None
    """Trust region; absent, the algorithm's own."""
    distill: Distill | None = None
    """The teacher, with algorithm distill."""
    critic: Critic | None = None
    """With ppo, advantages from a critic's values instead of from comparing with the group. With algorithm critic, what
    the values that it learns are made of."""
    custom: Plugin | None = None
    """A class of your own whose `recipe()` says advantages, loss, averaging and columns; from where the workflow's code
    comes."""
    kl: Kl = Kl()
    """Penalty on the distance to a reference model."""
    correction: Correction | None = None
    """Correction of the mismatch between engine and trainer; absent, ppo and rloo have weights capped at 2, and the
    others clip around the policy that sampled. m2po has none: it bounds the distance to that policy itself."""
    credit: Credit = Credit()
    """What of an episode a token is credited with."""
    overlong: Overlong | None = None
    """Treatment of overlong answers; absent, they are ordinary samples."""
    normalize_group_rewards: bool | None = None
    """Divide advantages by their group's standard deviation; absent, as the algorithm was published."""
    normalize_batch_advantages: bool = False
    """Bring the advantages of a step to mean 0 and deviation 1."""
    entropy_coefficient: NonNegative = 0.0
    """Weight of the entropy bonus."""
    updates_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimiser updates made from one batch, each on an equal part of it."""
    optimizer: Optimizer = Optimizer()
    """Optimiser settings."""
    schedule: Schedule = Schedule()
    """Learning rate schedule."""
