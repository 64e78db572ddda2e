"""The learning rule of a policy: loss, corrections, optimiser and schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import Rule, only_with
from trimtab.api.scalars import Count, Fraction, Location, NonNegative, Positive, PositiveCount

AlgorithmName = Literal["m2po", "grpo", "drgrpo", "dapo", "ppo", "gspo", "cispo", "rloo"]


class Clip(ApiModel):
    """Trust region on the probability ratio r, as [1 - low, 1 + high]."""

    low: Annotated[float, Field(gt=0, le=1)] | None = None
    """Lower half-width; absent, the algorithm's own: 0.2, and 0.0003 for gspo."""
    high: Annotated[float, Field(gt=0, le=100)] | None = None
    """Upper half-width; absent, the algorithm's own: 0.2, 0.28 for dapo, 0.0004 for gspo."""
    dual: Annotated[float, Field(gt=1, le=100)] | None = None
    """Bounds the loss of samples with negative advantage at this multiple of it; absent, there is no bound."""


class Kl(ApiModel):
    """Penalty on the distance to a fixed reference model."""

    coefficient: NonNegative = 0.0
    """Weight in the loss; 0 keeps no reference model in memory."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the divergence is estimated. k3, the common choice, is never negative, and its gradient is that of the
    divergence the other way round: it stays nearer to what the reference liked. k1 and k2 have the gradient of the
    divergence itself."""
    reference: Location | None = None
    """The reference model; absent, the policy's starting weights."""


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
        only_with("correction", condition="self.name != 'm2po'", when="with algorithms other than m2po"),
        only_with(
            "clip", condition="!(self.name in ['m2po', 'rloo'])", when="with algorithms other than m2po and rloo"
        ),
    )

    name: AlgorithmName = "m2po"
    """The loss. m2po bounds the second moment of the log ratio and stays stable on stale data; grpo is the common
    baseline; drgrpo drops its length and deviation biases; dapo clips higher and averages over tokens; ppo is decoupled
    for stale data; gspo works on whole sequences; cispo clips weights instead of updates; rloo is REINFORCE with a
    leave-one-out baseline."""
    m2_threshold: Annotated[float, Field(gt=0, le=10)] | None = None
    """Largest second moment of the log ratio over a step; absent, 0.04."""
    clip: Clip | None = None
    """Trust region; absent, the algorithm's own."""
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
