"""RolloutPool: a fleet of interchangeable rollout pods in one cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.conditions import Conditions, LastError
from trimtab.api.engine import Engine, PolicyEngines
from trimtab.api.model import ApiModel, ObjectMeta
from trimtab.api.names import MAX_CHILD_NAME
from trimtab.api.policy import NOT_RESERVED
from trimtab.api.rules import ListMap, Rule, immutable
from trimtab.api.scalars import (
    LABEL_PATTERN,
    Count,
    CountOrPercent,
    JobRef,
    MemberName,
    NonNegative,
    PodTemplate,
    Replicas,
    Resources,
    Seconds,
    SecretKey,
)

CHILD_NAME_RULE = Rule(
    f"size(self.metadata.name) <= {MAX_CHILD_NAME} && self.metadata.name.matches('{LABEL_PATTERN}')",
    f"metadata.name must have at most {MAX_CHILD_NAME} lower-case letters, digits and dashes and start with a letter: "
    "pods are named after it",
    ".metadata.name",
)
# What an RLJob says of its pools, and the operator of a RolloutPool made by hand.
MISSING_ENGINE = (
    ": an episode has all its roles, and a stage its policy, in one pod, so add the policy to the engines of the pool"
)
UNKNOWN_POLICY = "pools[].engines must name policies of this job"
ENDPOINT_OF_LEARNER = (
    "pools[].engines[].endpoint is for frozen policies: no endpoint takes the weights of one that learns"
)
IDLE_POOL = "pools[].rollouts must be true unless a stage names the pool: it would have nothing to do"
MISSING_MODEL = "policies[].model is required where a pool has no endpoint for the policy in its engines"


class Cluster(ApiModel):
    """Another Kubernetes cluster. Its pods dial out to NATS and object storage; nothing dials in."""

    kubeconfig_secret: SecretKey
    """Secret with the kubeconfig, in the job's namespace. Insecure TLS, exec plug-ins and file references are
    refused."""
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] | None = (
        None
    )
    """Namespace there; absent, the one the job is in here."""
    lost_after_seconds: Seconds = 900
    """Seconds the cluster may be unreachable before its capacity is rebuilt elsewhere. Until then nothing is moved or
    killed."""


class Update(ApiModel):
    """How a changed template reaches the pods."""

    max_unavailable: CountOrPercent = "25%"
    """Pods that may be missing during the change, as a number or a share of replicas, rounded down."""
    max_surge: CountOrPercent = 0
    """Pods that may be added during the change, as a number or a share of replicas, rounded up."""


class PoolSettings(ApiModel):
    """What a pool in a job and a RolloutPool made by hand have in common."""

    rules = (
        Rule(
            "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas",
            ".minReplicas",
        ),
        Rule(
            "self.replicas >= self.minReplicas && (!has(self.maxReplicas) || self.replicas <= self.maxReplicas)",
            "replicas must be between minReplicas and maxReplicas",
            ".replicas",
        ),
        Rule(
            "!((self.update.maxUnavailable == 0 || self.update.maxUnavailable == '0%') && "
            "(self.update.maxSurge == 0 || self.update.maxSurge == '0%'))",
            "maxUnavailable and maxSurge must not both be 0: no pod could ever be replaced",
            ".update",
        ),
        Rule(
            "(self.engine.name != 'openai' && !has(self.engine.url)) || "
            "self.engines.all(engines, engines.replicas == 1 && !has(engines.args))",
            "replicas and args of engines apply only where the pool launches the engine (no url, not openai)",
            ".engines",
        ),
    )

    replicas: Replicas = 1
    """Pods wanted. With autoscaling Auto the autoscaler owns the RolloutPool's value, and the job's is only where it
    starts."""
    min_replicas: Replicas = 0
    """The autoscaler never goes below."""
    max_replicas: Replicas | None = None
    """The autoscaler never goes above; absent, only the job's own maximum holds."""
    devices_per_replica: Annotated[int, Field(ge=1, le=1024)] = 1
    """Accelerators one pod occupies; the balance between trainer and rollout is counted in devices."""
    cost_per_hour: NonNegative | None = None
    """Price of one pod, in any unit used for all pools. Cheaper throughput is filled first and drained last."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Pools of higher priority fill first and drain last, whatever they cost."""
    engine: Engine = Engine()
    """What samples tokens."""
    engines: Annotated[tuple[PolicyEngines, ...], ListMap("policy"), Field(max_length=32)] = ()
    """Engines by policy, with every policy that has a role: an episode has all its roles in one pod. Policies that only
    stages ask are needed where those run. Empty, each policy that is needed has one."""
    rollouts: bool = True
    """It runs episodes, and the stages that name no pool. With false, only the stages that name this pool."""
    max_concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Episodes one pod may run at once; it adapts below this to the engine's load."""
    grace_period_seconds: Seconds = 300
    """Seconds a draining pod has to finish its episodes; what is left goes back to the queue."""
    resources: Resources = Resources()
    """Compute resources of the worker's container; the engine has its own."""
    template: PodTemplate | None = None
    """Pod template, laid over what the operator generates; containers are named `worker` and `engine`, or
    `engine-<policy>` for the engines of one policy."""
    cluster: Cluster | None = None
    """Where the pods run; absent, in the operator's cluster."""
    update: Update = Update()
    """How a changed template is rolled out."""


class JobPool(PoolSettings):
    """A pool of the job."""

    name: Annotated[MemberName, NOT_RESERVED]
    """Name of the pool, unique in the job; its RolloutPool is called `<job>-<name>`."""


class RolloutPoolSpec(PoolSettings):
    """What the pool should be."""

    job_ref: Annotated[JobRef, immutable("jobRef", why="pods are wired to one job; create another RolloutPool")]
    """The RLJob this pool works for."""
    suspend: bool = False
    """Drain and delete all pods, and keep the object and its replicas."""


class RolloutPoolStatus(ApiModel):
    """What the pool is."""

    observed_generation: Count | None = None
    """The metadata.generation this status was made for."""
    conditions: Conditions = ()
    """Ready, Accepted, Progressing, Suspended and, for another cluster, Reachable."""
    replicas: Count = 0
    """Pods that exist, draining ones included."""
    ready_replicas: Count = 0
    """Pods that take tasks."""
    draining_replicas: Count = 0
    """Pods that finish their episodes before they go."""
    updated_replicas: Count = 0
    """Pods with the current template."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the pods, for HPA and kubectl."""
    version: Count | None = None
    """Oldest weight version that a ready pod serves."""
    tokens_per_second: NonNegative | None = None
    """Generated tokens per second, over all pods, in the last report."""
    startup_seconds: NonNegative | None = None
    """Seconds that a pod took from its creation to its readiness, the median of those that are ready."""
    preemptions: Count = 0
    """Pods lost to preemption or eviction; they are replaced free of charge."""
    preempted: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=16_384)] = ()
    """UIDs of pods that preemptions has counted and that are still there, so that none is counted twice."""
    last_error: LastError | None = None
    """The latest failure."""


class RolloutPool(ApiModel):
    """A fleet of rollout pods that takes tasks of one RLJob. A job creates one per pool; create one by hand to lend it
    capacity."""

    rules = (CHILD_NAME_RULE,)

    api_version: Literal["rl.trimtab.dev/v1alpha1"] = "rl.trimtab.dev/v1alpha1"
    """Always rl.trimtab.dev/v1alpha1."""
    kind: Literal["RolloutPool"] = "RolloutPool"
    """Always RolloutPool."""
    metadata: ObjectMeta
    """Standard object metadata."""
    spec: RolloutPoolSpec
    """What the pool should be."""
    status: RolloutPoolStatus | None = None
    """What the pool is; written by the operator."""
