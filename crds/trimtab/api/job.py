"""RLJob: what a researcher writes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.autoscaling import Autoscaling, AutoscalingStatus
from trimtab.api.column_rules import COLUMN_RULES
from trimtab.api.conditions import Conditions, LastError
from trimtab.api.data import Data
from trimtab.api.evaluation import Evaluation, EvaluationResult
from trimtab.api.failure import FailurePolicy
from trimtab.api.goals import Goals
from trimtab.api.hub import Hub
from trimtab.api.live_settings import LiveSettings, PolicySettings
from trimtab.api.model import ApiModel, ObjectMeta
from trimtab.api.names import MAX_JOB_AND_MEMBER
from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool
from trimtab.api.resume import ResumeFrom
from trimtab.api.rules import ListMap, Rule, immutable
from trimtab.api.scalars import (
    LABEL_PATTERN,
    Count,
    Fraction,
    MemberName,
    NonNegative,
    PodTemplate,
    PositiveCount,
    Seconds,
)
from trimtab.api.stage import MAX_STAGES, Stage
from trimtab.api.stage_rules import IN_ORDER, STAGE_RULES
from trimtab.api.streams import Streams
from trimtab.api.tracking import Tracker
from trimtab.api.workflow import Workflow

MAX_POLICIES = 32
MAX_POOLS = 128

# Listed once and then looked up, as in stage_rules.
_NAMES = "[self.policies.map(policy, policy.name)]"
_FROZEN = "[self.policies.filter(policy, policy.frozen).map(policy, policy.name)]"


def _name_fits(members: str) -> Rule:
    return Rule(
        f"self.spec.{members}.all(member, size(self.metadata.name) + size(member.name) <= {MAX_JOB_AND_MEMBER})",
        f"metadata.name and the longest name in spec.{members} must together have at most {MAX_JOB_AND_MEMBER} "
        "characters: pods are named after both",
        f".spec.{members}",
    )


class RLJobSpec(ApiModel):
    """What the job should be."""

    rules = (
        *STAGE_RULES,
        *COLUMN_RULES,
        Rule(
            "self.policies.exists(policy, !policy.frozen)",
            "at least one policy must learn: not all of them may be frozen",
            ".policies",
        ),
        Rule(
            "self.policies.all(policy, !has(policy.batchSize) || policy.batchSize % self.data.groupSize == 0)",
            "policies[].batchSize must be a multiple of data.groupSize: a batch holds whole groups",
            ".policies",
        ),
        Rule(
            f"{_NAMES}.all(names, self.workflow.roles.all(role, role.policy in names))",
            "workflow.roles[].policy must name policies of this job",
            ".workflow.roles",
        ),
        Rule(
            f"{_NAMES}.all(names, self.data.mix.all(mix, "
            "mix.policy in names && mix.streams.all(stream, stream.policy in names)))",
            "data.mix must name policies of this job",
            ".data.mix",
        ),
        Rule(
            f"{_FROZEN}.all(frozen, self.data.mix.all(mix, "
            "!(mix.policy in frozen) && mix.streams.all(stream, !(stream.policy in frozen))))",
            "data.mix must name policies that learn: a frozen one has neither a trainer nor samples",
            ".data.mix",
        ),
        Rule(
            "self.policies.all(policy, "
            "policy.trainer.replicas * policy.trainer.devicesPerReplica <= "
            "(has(policy.batchSize) ? policy.batchSize : self.data.batchSize))",
            "batchSize must be at least trainer.replicas * trainer.devicesPerReplica: every rank needs a sample",
            ".data.batchSize",
        ),
        Rule(
            "self.policies.all(policy, policy.trainer.publish.everySteps <= self.data.maxStaleness + 1)",
            "maxStaleness must be at least policies[].trainer.publish.everySteps - 1: no sample would be fresh enough",
            ".data.maxStaleness",
        ),
        Rule(
            "has(self.maxSteps) || has(self.targetReward) || has(self.data.epochs)",
            "set maxSteps, targetReward or data.epochs: without one the job never ends",
            ".maxSteps",
        ),
        Rule(
            "has(self.resumeFrom) == has(oldSelf.resumeFrom)",
            "resumeFrom is immutable: versions continue from it; create a new RLJob",
            ".resumeFrom",
        ),
    )

    workflow: Workflow
    """The agent program of an episode."""
    data: Data
    """From prompts to batches."""
    policies: Annotated[
        tuple[Policy, ...],
        ListMap(),
        Field(min_length=1, max_length=MAX_POLICIES),
        Rule(
            "size(self) == size(oldSelf) && self.all(policy, oldSelf.exists(old, old.name == policy.name))",
            "policies can be neither added, removed nor renamed: create a new RLJob",
        ),
    ]
    """The models that learn, each with a trainer of its own and no barrier between them, and frozen ones."""
    pools: Annotated[tuple[JobPool, ...], ListMap(), Field(min_length=1, max_length=MAX_POOLS)]
    """The fleets that run episodes and stages. They can be added and removed while the job runs."""
    stages: Annotated[
        tuple[Stage, ...],
        ListMap(),
        Field(max_length=MAX_STAGES),
        IN_ORDER,
        immutable("stages", why="groups under way wait for them; create a new RLJob"),
    ] = ()
    """What is computed about rows between rollout and trainer, in an order in which each stage comes after those that
    it needs."""
    resume_from: (
        Annotated[ResumeFrom, immutable("resumeFrom", why="versions continue from it; create a new RLJob")] | None
    ) = None
    """Begin at a checkpoint of another job; absent, at the models of `policies`. Prompts, versions, steps and goals are
    counted from the beginning."""
    hub: Hub = Hub()
    """Where models and prompts that are called `hf://…` come from."""
    streams: Streams = Streams()
    """How much the job may store on NATS, and on how many servers. It can be changed while the job runs."""
    autoscaling: Autoscaling = Autoscaling()
    """Sizing of the fleets."""
    evaluation: Evaluation | None = None
    """Evaluation on held-out prompts; absent, there is none."""
    tracking: Annotated[tuple[Tracker, ...], ListMap("type"), Field(max_length=4)] = ()
    """Trackers that the run's curves are written to besides Prometheus."""
    tracking_template: PodTemplate | None = None
    """Pod template of the pod that writes to trackers in a cluster; its container is named `tracking`."""
    max_steps: PositiveCount | None = None
    """Trainer steps after which a policy has succeeded; the job ends when all have. A job that has succeeded goes on
    from where it ended when this, targetReward or data.epochs is raised."""
    target_reward: float | None = None
    """Mean reward over a window of autoscaling.windowSteps at which a policy has succeeded; the job ends when all
    have."""
    suspend: bool = False
    """Checkpoint, drain and delete all pods. What was learned stays, and false resumes from it."""
    ttl_seconds_after_finished: Seconds | None = None
    """Seconds after its end at which the job is deleted, with its pods and without its weights; absent, it stays."""
    managed_by: Annotated[
        Literal["rl.trimtab.dev/operator", "kueue.x-k8s.io/multikueue"],
        immutable("managedBy", why="two controllers would fight; create a new RLJob"),
    ] = "rl.trimtab.dev/operator"
    """Who runs the job. The operator leaves jobs managed by others alone."""
    failure_policy: FailurePolicy = FailurePolicy()
    """What happens when pods fail."""

    @property
    def learning(self) -> tuple[Policy, ...]:
        """The policies that are trained."""
        return tuple(policy for policy in self.policies if not policy.frozen)

    @property
    def goals(self) -> Goals:
        """What ends the job."""
        return Goals(max_steps=self.max_steps, target_reward=self.target_reward, epochs=self.data.epochs)

    @property
    def live_settings(self) -> LiveSettings:
        """Of its policies that learn."""
        return LiveSettings(
            max_staleness=self.data.max_staleness,
            policies=tuple(
                PolicySettings(
                    name=policy.name,
                    learning_rate=policy.algorithm.optimizer.learning_rate,
                    batch_size=self.batch_size(policy.name),
                )
                for policy in self.learning
            ),
        )

    def batch_size(self, policy: str) -> int:
        """Episodes in one step of this policy's trainer."""
        own = next((one.batch_size for one in self.policies if one.name == policy), None)
        return self.data.batch_size if own is None else own


class PolicyStatus(ApiModel):
    """How one policy is doing."""

    name: MemberName
    """Name of the policy."""
    step: Count = 0
    """Trainer steps done."""
    version: Count = 0
    """Latest published weight version."""
    reward: float | None = None
    """Mean reward of the last window."""
    waiting_fraction: Fraction | None = None
    """Share of the last window its trainer spent waiting for samples."""
    staleness: NonNegative | None = None
    """Mean staleness, in versions, of the samples of the last window."""
    evaluation: Annotated[tuple[EvaluationResult, ...], ListMap("benchmark"), Field(max_length=32)] = ()
    """Latest score on each benchmark."""


class PoolStatus(ApiModel):
    """How one pool is doing."""

    name: MemberName
    """Name of the pool in the job; the name of the RolloutPool for one made by hand."""
    replicas: Count = 0
    """Pods that exist."""
    ready_replicas: Count = 0
    """Pods that take tasks."""
    desired_replicas: Count = 0
    """Pods wanted."""


class RLJobStatus(ApiModel):
    """What the job is."""

    observed_generation: Count | None = None
    """The metadata.generation this status was made for."""
    conditions: Conditions = ()
    """Succeeded (the summary; its reason says what the job is doing), Accepted, Suspended, HasRoom and
    Durable of its streams, and the scaling conditions."""
    start_time: datetime | None = None
    """When the first pod was created."""
    completion_time: datetime | None = None
    """When the job succeeded or failed; absent again when it goes on."""
    goals: Goals | None = None
    """What the job was to reach when it succeeded: it goes on when the manifest asks for more."""
    step: Count = 0
    """Trainer steps done by the policy that is furthest behind."""
    reward: float | None = None
    """Mean reward of the last window, averaged over policies."""
    waiting_fraction: Fraction | None = None
    """Largest waiting fraction of the policies."""
    staleness: NonNegative | None = None
    """Largest mean staleness of the policies, in versions."""
    replicas: Count = 0
    """Rollout pods that exist, over all pools."""
    ready_replicas: Count = 0
    """Rollout pods that take tasks, over all pools."""
    restarts: Count = 0
    """Restarts of trainer groups for any reason."""
    restarts_counted: Count = 0
    """Restarts that count against failurePolicy.maxRestarts."""
    quarantined_tasks: Count = 0
    """Tasks given up after data.tasks.maxDeliveries attempts."""
    anchored_anew: Count = 0
    """How often the dataflow's ledger and a policy's checkpoints did not meet, as after a power loss, and the job went
    on with the step that the trainer proved."""
    given_up_groups: Count = 0
    """Prompt groups that were given up because of that, as far as they were known: what may have been trained is never
    trained again."""
    policies: Annotated[tuple[PolicyStatus, ...], ListMap(), Field(max_length=MAX_POLICIES)] = ()
    """Policy by policy."""
    pools: Annotated[tuple[PoolStatus, ...], ListMap(), Field(max_length=1024)] = ()
    """Pool by pool, those made by hand included."""
    autoscaling: AutoscalingStatus | None = None
    """The latest scaling decision."""
    settings: LiveSettings | None = None
    """Settings of learning that the job runs with; a change of them is an event."""
    last_error: LastError | None = None
    """The latest failure."""


class RLJob(ApiModel):
    """One asynchronous RL post-training run: its workflow, data, policies and rollout fleets."""

    rules = (
        Rule(
            f"size(self.metadata.name) < {MAX_JOB_AND_MEMBER} && self.metadata.name.matches('{LABEL_PATTERN}')",
            f"metadata.name must have fewer than {MAX_JOB_AND_MEMBER} lower-case letters, digits and dashes and start "
            "with a letter: pods are named after it",
            ".metadata.name",
        ),
        _name_fits("policies"),
        _name_fits("pools"),
    )

    api_version: Literal["rl.trimtab.dev/v1alpha1"] = "rl.trimtab.dev/v1alpha1"
    """Always rl.trimtab.dev/v1alpha1."""
    kind: Literal["RLJob"] = "RLJob"
    """Always RLJob."""
    metadata: ObjectMeta
    """Standard object metadata."""
    spec: RLJobSpec
    """What the job should be."""
    status: RLJobStatus | None = None
    """What the job is; written by the operator."""
