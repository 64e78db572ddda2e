"""The data path of a job: prompt sources, then what happens before rollout (curator), after rollout (filter) and when a
batch is made (replay, mix).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.prompts import PromptSource
from trimtab.api.rules import ListMap, ListSet, Rule, at_most_one_of, immutable, only_with
from trimtab.api.scalars import (
    ColumnName,
    Count,
    Fraction,
    MemberName,
    Plugin,
    PodTemplate,
    Positive,
    PositiveCount,
    PositiveSeconds,
)

Label = Annotated[str, Field(min_length=1, max_length=64)]
MAX_BATCH = 1_048_576


class Greso(ApiModel):
    """Skip prompts that gave no signal lately: one with z zero-variance groups in a row is submitted with probability
    p^z."""

    initial_probability: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Value p starts from, for easy and hard prompts alike."""
    target_easy: Fraction = 0.083
    """Share of all-correct groups that p for easy prompts is steered to."""
    target_hard: Fraction = 0.167
    """Share of all-wrong groups that p for hard prompts is steered to."""
    step: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    """How much p moves per trainer step."""
    floor_easy: Fraction = 0.05
    """Lowest chance to be submitted of a prompt that is easy, so that none is given up for good."""
    floor_hard: Fraction = 0.3
    """Lowest chance of one that is hard: what was out of reach comes into reach as the policy learns."""
    margin: Annotated[float, Field(ge=1, le=10)] = 1.25
    """Factor on the estimated number of groups that a batch still needs."""


class Curriculum(ApiModel):
    """Easy prompts first: the share of the prompts in play, sorted by difficulty, grows over the run."""

    difficulty_column: ColumnName = "difficulty"
    """Numeric column of the prompt source; larger is harder."""
    start: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the prompts, easiest first, in play at step 0."""
    steps: PositiveCount = 1000
    """Trainer steps after which all prompts are in play."""


class Curator(ApiModel):
    """Chooses prompts before rollout. Empty, every prompt passes."""

    rules = (at_most_one_of("greso", "curriculum", "custom"),)

    greso: Greso | None = None
    """Skip prompts whose groups all had the same reward of late."""
    curriculum: Curriculum | None = None
    """Order prompts by difficulty."""
    custom: Plugin | None = None
    """A curator of your own."""


class LengthFilter(ApiModel):
    """Keeps trajectories by their number of trained tokens."""

    rules = (
        Rule(
            "!has(self.maxTokens) || self.minTokens <= self.maxTokens",
            "minTokens must not exceed maxTokens",
            ".minTokens",
        ),
    )

    min_tokens: Count = 0
    """Shorter trajectories are dropped."""
    max_tokens: PositiveCount | None = None
    """Longer trajectories are dropped; absent, none is too long."""


class Filter(ApiModel):
    """Chooses trajectories after rollout. Filters apply in the order of these fields; dropped groups are resampled."""

    zero_advantage: Literal["Keep", "Drop"] = "Keep"
    """Drop: groups whose rewards are all equal carry no gradient and are left out (dynamic sampling)."""
    truncated: Literal["Keep", "Drop"] = "Keep"
    """Drop: trajectories cut at maxTokens are left out; the rest of their group stays."""
    length: LengthFilter | None = None
    """Limits on the length of a trajectory."""
    custom: Plugin | None = None
    """A filter of your own, applied last."""


class Replay(ApiModel):
    """Trains again on trajectories already used. Without it each is trained exactly once per policy."""

    ratio: Annotated[float, Field(gt=0, lt=1)]
    """Share of each batch that is replayed."""
    size: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """Episodes kept for replay; only their metadata costs memory."""
    max_age: PositiveCount = 16
    """Versions after which a trajectory is too old for replay. It bounds replayed samples in place of maxStaleness."""
    max_uses: Annotated[int, Field(ge=2, le=1000)] = 2
    """How often one trajectory may be trained on, its first use included."""


class Archive(ApiModel):
    """The samples that were trained on, kept in the job's object storage when the stream has let go of them."""

    keep_steps: PositiveCount = 1000
    """Newest steps of each policy whose samples are kept; older ones are deleted."""


class Stream(ApiModel):
    """One input of a trainer."""

    policy: MemberName
    """The policy whose trajectories come in."""
    weight: Positive = 1.0
    """Share of the batch, relative to the other streams."""
    labels: Annotated[tuple[Label, ...], ListSet(), Field(max_length=64)] = ()
    """Only groups whose prompt has one of these values in data.routeColumn; empty, all of them."""


class Mix(ApiModel):
    """What one policy's trainer consumes."""

    policy: MemberName
    """The policy that is trained."""
    streams: Annotated[tuple[Stream, ...], ListMap("policy"), Field(min_length=1, max_length=32)]
    """Where its samples come from: its own stream, another policy's, or several."""


class Tasks(ApiModel):
    """How prompt groups travel to rollout workers."""

    max_deliveries: Annotated[int, Field(ge=1, le=100)] = 5
    """Attempts at a task before it is quarantined with its error. Hand-back by a draining worker does not count."""
    lease_seconds: PositiveSeconds = 60
    """Seconds without a worker's heartbeat after which its task goes to another."""


class Data(ApiModel):
    """From prompts to batches."""

    rules = (
        Rule(
            "self.batchSize % self.groupSize == 0",
            "batchSize must be a multiple of groupSize: a batch holds whole groups",
            ".batchSize",
        ),
        Rule(
            "self.filter.zeroAdvantage != 'Drop' || self.groupSize >= 2",
            "zeroAdvantage Drop needs a groupSize of at least 2: a group of one has nothing to compare",
            ".filter.zeroAdvantage",
        ),
        Rule(
            "!has(self.curator.greso) || self.groupSize >= 2",
            "greso needs a groupSize of at least 2: a group of one has no variance",
            ".curator.greso",
        ),
        Rule(
            "has(self.routeColumn) || self.mix.all(mix, mix.streams.all(stream, stream.labels.size() == 0))",
            "labels of a stream are values of routeColumn: name the column",
            ".routeColumn",
        ),
        only_with("selection", condition="(!has(self.replay) && self.mix.size() == 0)", when="without replay and mix"),
    )

    prompts: Annotated[tuple[PromptSource, ...], ListMap(), Field(min_length=1, max_length=32)]
    """Sources of prompts, mixed by weight."""
    group_size: Annotated[
        int, Field(ge=1, le=1024), immutable("groupSize", why="groups in flight would break; create a new RLJob")
    ] = 8
    """Episodes per prompt. Advantages compare the episodes of one group, so 1 leaves nothing to compare."""
    batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH)] = 256
    """Episodes in one trainer step, over all ranks. A policy may have its own batchSize."""
    max_staleness: Annotated[int, Field(ge=0, le=1024)] = 8
    """Versions by which the oldest trained token of a sample may lag behind the trainer. 0 is fully on-policy: rollout
    then waits for every step."""
    seed: Annotated[
        int, Field(ge=0, le=2**31 - 1), immutable("seed", why="the order of prompts already served follows from it")
    ] = 0
    """Seed of shuffling, mixing and curating; the same seed gives the same order."""
    shuffle: bool = True
    """Shuffle each epoch by seed; false keeps the order of the source."""
    epochs: PositiveCount | None = None
    """Times the sources are gone through before the job ends; absent, until maxSteps or targetReward."""
    max_prompt_tokens: PositiveCount | None = None
    """Longer prompts are skipped and counted; absent, none is too long."""
    curator: Curator = Curator()
    """What happens before rollout."""
    filter: Filter = Filter()
    """What happens after rollout."""
    replay: Replay | None = None
    """Reuse of trajectories; absent, there is none."""
    route_column: ColumnName | None = None
    """Column of the prompts whose value, a text, a whole number or a truth value, labels their groups: for mix, filters
    and selections. A prompt without it has no label. Absent, none has."""
    mix: Annotated[tuple[Mix, ...], ListMap("policy"), Field(max_length=32)] = ()
    """Which streams each trainer consumes; a policy not listed consumes its own."""
    selection: Plugin | None = None
    """A selection of your own, in place of replay and mix."""
    archive: Archive | None = None
    """Keep samples in object storage, for `trimtab samples`; absent, they are there as long as training needs them."""
    tasks: Tasks = Tasks()
    """Delivery of tasks to workers."""
    shards: Annotated[int, Field(ge=1, le=64)] = 1
    """Dataflow pods; prompts are spread over them by id."""
    template: PodTemplate | None = None
    """Pod template of the dataflow pods, laid over what the operator generates."""
