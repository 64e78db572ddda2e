"""A policy: one model that learns, with its own trainer, version line, buffer and weight stream, or a frozen one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trimtab.api.algorithm import Algorithm
from trimtab.api.data import MAX_BATCH
from trimtab.api.lora import Lora
from trimtab.api.model import ApiModel
from trimtab.api.names import RESERVED_MEMBERS
from trimtab.api.rules import Rule, immutable, only_with
from trimtab.api.sampling import Sampling
from trimtab.api.scalars import Location, MemberName, PositiveCount
from trimtab.api.source_uri import MODEL_URI
from trimtab.api.training import TrainerSettings

NOT_RESERVED = Rule(
    f"!(self in {list(RESERVED_MEMBERS)})", f"{', '.join(RESERVED_MEMBERS)} is reserved for the job's own objects"
)


class Model(ApiModel):
    """Starting weights, in transformers format."""

    uri: Annotated[Location, MODEL_URI]
    """A folder in the pods of trainer and pools: an absolute path on a volume of their templates, or with `trimtab run`
    also one relative to the manifest. Or `hf://org/name@revision` on a Hugging Face hub, or `s3://bucket/prefix`:
    those are fetched before the pods begin."""
    tokenizer: Annotated[Location, MODEL_URI] | None = None
    """Where the tokenizer is, when it is not in the model's folder; as `uri`."""
    max_context_tokens: PositiveCount | None = None
    """Longest conversation of the policy, everything in it counted: what has no room is cut and marked truncated. At
    most what the model's configuration says, which it is when absent."""


class Policy(ApiModel):
    """One model that learns, or that has a part in episodes and stays as it is."""

    rules = (
        Rule("self.frozen || has(self.model)", "model is required, except for a frozen policy on endpoints", ".model"),
        Rule("has(self.model) == has(oldSelf.model)", "model is immutable: versions continue from it", ".model"),
        only_with("batchSize", condition="!self.frozen", when="to policies that learn, not to a frozen one"),
        only_with("lora", condition="!self.frozen", when="to policies that learn, not to a frozen one"),
        Rule(
            "!has(self.lora) || self.algorithm.name != 'critic'",
            "lora does not apply with algorithm critic: its value head is trained with the model",
            ".lora",
        ),
        Rule(
            "!(has(self.algorithm.kl.stage) || has(self.algorithm.distill)) || "
            "(self.sampling.topP == 1.0 && self.sampling.topK <= 0 && self.sampling.minP == 0.0)",
            "topP, topK and minP do not apply with algorithm.kl.stage and distill: a stage's log-probabilities are of "
            "all tokens",
            ".sampling",
        ),
        Rule(
            "has(self.lora) == has(oldSelf.lora)",
            "lora is immutable: its checkpoints are of adapters, or of the model; create a new RLJob",
            ".lora",
        ),
    )

    name: Annotated[MemberName, NOT_RESERVED]
    """Name of the policy, unique in the job; its Trainer is called `<job>-<name>`."""
    model: (
        Annotated[Model, immutable("model", why="versions continue from it; create a new RLJob for another model")]
        | None
    ) = None
    """Weights the policy starts from. A frozen policy that every pool has an endpoint for needs none."""
    frozen: Annotated[bool, immutable("frozen", why="a trainer and its samples belong to it; create a new RLJob")] = (
        False
    )
    """It stays as it is: it has no Trainer, no versions and no samples, and what it says is environment to others."""
    lora: (
        Annotated[Lora, immutable("lora", why="versions and checkpoints continue from it; create a new RLJob")] | None
    ) = None
    """Train adapters of low rank and leave the model as it is; absent, all its weights are trained."""
    batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH)] | None = None
    """Episodes in one step of its trainer, over all ranks; absent, data.batchSize."""
    algorithm: Algorithm = Algorithm()
    """How it learns."""
    sampling: Sampling = Sampling()
    """How its tokens are drawn in training episodes."""
    trainer: TrainerSettings = TrainerSettings()
    """The processes that train it."""

    @property
    def weights(self) -> Model:
        """The model of a policy that is trained or that an engine in a pod serves, where the rules ask for one."""
        assert self.model is not None, f"policy {self.name} has no model"
        return self.model
