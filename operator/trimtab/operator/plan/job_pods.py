"""The pods of an RLJob: one dataflow, one that writes to trackers, the ranks of each policy's trainer, the replicas of
each pool with their engines.

Each has a revision, a short digest of what it is made from: a pod with another one has to be replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from trimtab.api import labels, names
from trimtab.api.job import RLJob
from trimtab.api.placement import policies_of, stages_of
from trimtab.api.pod_template import template_command
from trimtab.api.policy import Policy
from trimtab.api.pool import RolloutPool
from trimtab.api.tracking import KEY_VARIABLES
from trimtab.api.trainer import Trainer
from trimtab.fabric.sources.wants import Want, dataflow_wants, rollout_wants, trainer_wants
from trimtab.operator.plan.engines import engine_containers, engine_secrets, engine_urls
from trimtab.operator.plan.pods import ContainerPlan, PodPlan, Restart
from trimtab.operator.plan.sandbox import sandbox_containers, sandbox_environment

_DATAFLOW_GRACE_S = 10.0
TRACKING_GRACE_S = 120.0
"""In which what writes to trackers may tell, after the job's end, what they have not been told."""
_HEX_DIGITS = 10
_OF_A_POD = frozenset(
    ("TRIMTAB_JOB_FILE", *(f"TRIMTAB_POD__{name}" for name in ("NAMESPACE", "JOB", "ROLE", "NAME", "POLICY", "POOL")))
)


def dataflow_pods(job: RLJob) -> list[PodPlan]:
    name = names.dataflow_pod_name(job.metadata.name, 0)
    container = ContainerPlan(
        name="dataflow",
        command=("python", "-m", "trimtab.dataflow"),
        environment=_identity(job, role="dataflow", pod=name) | {"TRIMTAB_SCRATCH": "$(SCRATCH)/prompts"},
    )
    wants = dataflow_wants(job.spec)
    pod = PodPlan(
        name=name,
        role="dataflow",
        owner=job.metadata.name,
        containers=_after_fetching(job, container, wants=wants),
        restart=Restart.ALWAYS,
        grace_s=_DATAFLOW_GRACE_S,
        template=job.spec.data.template or {},
    )
    reads = job.spec.model_dump(
        mode="json",
        include={
            "data": True,
            "evaluation": True,
            "max_steps": True,
            "target_reward": True,
            "autoscaling": {"window_steps"},
            "policies": {"__all__": {"name", "frozen", "batch_size"}},
            "stages": True,
        },
    )
    return [replace(pod, revision=_revision_of(pod, reads=reads))]


def tracking_pods(job: RLJob) -> list[PodPlan]:
    """One for all trackers of the job; none where it has none."""
    if not job.spec.tracking:
        return []
    name = names.tracking_pod_name(job.metadata.name)
    container = ContainerPlan(
        name="tracking",
        command=("python", "-m", "trimtab.cli.tracking.cluster"),
        environment=_identity(job, role="tracking", pod=name) | {"TRIMTAB_SCRATCH": "$(SCRATCH)/tracking"},
        secrets={
            KEY_VARIABLES[tracker.type]: tracker.key_secret
            for tracker in job.spec.tracking
            if tracker.key_secret is not None
        },
    )
    pod = PodPlan(
        name=name,
        role="tracking",
        owner=job.metadata.name,
        containers=(container,),
        restart=Restart.ALWAYS,
        grace_s=TRACKING_GRACE_S,
        template=job.spec.tracking_template or {},
    )
    reads = [tracker.model_dump(mode="json") for tracker in job.spec.tracking]
    return [replace(pod, revision=_revision_of(pod, reads=reads))]


def trained_policy(job: RLJob, trainer: Trainer) -> Policy:
    """The job's policy as this trainer trains it. A Trainer made by hand may have a model and algorithm of its own."""
    policy = next(policy for policy in job.spec.policies if policy.name == trainer.spec.policy)
    settings = type(policy.trainer).model_validate(trainer.spec.model_dump(by_alias=False))
    return policy.model_copy(
        update={
            "trainer": settings,
            "model": trainer.spec.model or policy.model,
            "algorithm": trainer.spec.algorithm or policy.algorithm,
        }
    )


def trainer_pods(job: RLJob, trainer: Trainer, *, attempt: int) -> list[PodPlan]:
    """Each has as many ranks as devices. All of them find each other at $(MASTER_ADDR): the one place where pods of a
    job talk directly.
    """
    policy = trained_policy(job, trainer)
    settings = policy.trainer
    group = trainer.metadata.name
    pods = []
    for ordinal in range(settings.replicas):
        name = names.trainer_pod_name(group, ordinal)
        ours = (
            "python", "-m", "trimtab.trainer.launch",
            f"--nnodes={settings.replicas}", f"--node-rank={ordinal}",
            f"--nproc-per-node={settings.devices_per_replica}", "--max-restarts=0",
            "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)",
            "-m", "trimtab.trainer",
        )  # fmt: skip
        container = ContainerPlan(
            name="trainer",
            command=template_command(settings.template, container="trainer") or ours,
            environment=_identity(job, role="trainer", pod=name)
            | {
                "TRIMTAB_POD__POLICY": policy.name,
                "TRIMTAB_ATTEMPT": str(attempt),
                "TRIMTAB_SCRATCH": "$(SCRATCH)/weights",
                # torchrun gives ranks that are told to leave half a minute, unless it is told otherwise.
                "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(settings.grace_period_seconds),
            },
            resources=settings.resources,
        )  # fmt: skip
        pods.append(
            PodPlan(
                name=name,
                role="trainer",
                owner=group,
                gang=True,
                containers=_after_fetching(job, container, wants=trainer_wants(policy)),
                restart=Restart.NEVER,
                grace_s=settings.grace_period_seconds,
                attempt=attempt,
                template=settings.template or {},
            )
        )
    reads = [
        settings.replicas,
        policy.model_dump(mode="json", exclude={"trainer": {"replicas"}}),
        job.spec.model_dump(mode="json", include={"data": {"max_staleness", "archive"}, "evaluation": {"keep_best"}}),
    ]
    revision = _revision_of(replace(pods[0], attempt=0, containers=()), reads=reads)
    return [replace(pod, revision=revision) for pod in pods]


def rollout_pods(job: RLJob, pool: RolloutPool, ordinals: Iterable[int], *, revision: str) -> list[PodPlan]:
    """A worker and the engines it samples from, side by side: when one dies, the others stay. `revision` is theirs all
    together: it takes a look at the whole manifest, which may be long, as pools may be large."""
    return [
        replace(_rollout_pod(job, pool, names.rollout_pod_name(pool.metadata.name, ordinal)), revision=revision)
        for ordinal in ordinals
    ]


def rollout_revision(job: RLJob, pool: RolloutPool) -> str:
    """Of all pods of the pool."""
    first = _rollout_pod(job, pool, names.rollout_pod_name(pool.metadata.name, 0))
    reads = [
        job.spec.workflow.model_dump(mode="json"),
        [
            policy.model_dump(mode="json", include={"name", "model", "sampling", "frozen"})
            for policy in job.spec.policies
        ],
        [stage.model_dump(mode="json") for stage in stages_of(job.spec, pool.spec, name=pool_label(pool))],
        job.spec.data.max_staleness,
        # Of algorithms workers need to know whether to tell what turns earned.
        [policy.algorithm.credit.type for policy in job.spec.policies],
        pool.spec.model_dump(
            mode="json", exclude={"replicas", "min_replicas", "max_replicas", "suspend", "update", "cluster"}
        ),
    ]
    return _revision_of(first, reads=reads)


def pool_label(pool: RolloutPool) -> str:
    """The pool's name in its job; a pool made by hand has only its own."""
    return pool.metadata.labels.get(labels.POOL, pool.metadata.name)


def _rollout_pod(job: RLJob, pool: RolloutPool, name: str) -> PodPlan:
    settings = pool.spec
    policies = policies_of(job.spec, settings, name=pool_label(pool))
    valued = {stage.policy for stage in job.spec.stages if stage.asks_values}
    engines = engine_containers(settings, policies, others=job.spec.policies, valued=valued)
    # Where no episode runs, nothing is executed.
    sandbox = job.spec.workflow.sandbox if settings.rollouts else None
    worker = ContainerPlan(
        name="worker",
        command=("python", "-m", "trimtab.rollout"),
        environment=_identity(job, role="rollout", pod=name)
        | {
            "TRIMTAB_POD__POOL": pool_label(pool),
            "TRIMTAB_ENGINES": engine_urls(settings, policies),
            "TRIMTAB_SCRATCH": "$(SCRATCH)/weights",
        }
        | sandbox_environment(sandbox),
        secrets=engine_secrets(settings),
        resources=settings.resources,
    )
    return PodPlan(
        name=name,
        role="rollout",
        owner=pool.metadata.name,
        containers=_after_fetching(job, *sandbox_containers(sandbox), *engines, worker, wants=rollout_wants(policies)),
        runtime_class=None if sandbox is None else sandbox.runtime_class_name,
        restart=Restart.ALWAYS,
        grace_s=settings.grace_period_seconds,
        template=settings.template or {},
    )


def _revision_of(pod: PodPlan, *, reads: object) -> str:
    """`reads` is what its programs read of the manifest. Pods that differ in their ordinal alone are interchangeable:
    take the first.
    """
    text = json.dumps([asdict(pod), reads], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]


def _after_fetching(job: RLJob, *containers: ContainerPlan, wants: Sequence[Want]) -> tuple[ContainerPlan, ...]:
    """With a container before them that fetches what the pod wants of hubs and object storage. It alone is given the
    hub's token: what else is in a pod runs code of a workflow, or beside it."""
    if not wants:
        return containers
    place = {"TRIMTAB_FETCHED": "$(FETCHED)"}
    main = next(container for container in containers if not container.sidecar)
    secret = job.spec.hub.token_secret
    fetching = ContainerPlan(
        name="fetch",
        command=("python", "-m", "trimtab.fabric.sources"),
        environment={name: value for name, value in main.environment.items() if name in _OF_A_POD}
        | place
        | {"HF_HOME": "$(FETCHED)/../hub", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        secrets={} if secret is None else {"HF_TOKEN": secret},
        before=True,
    )
    told = (
        replace(container, environment={**container.environment, **place}) if container is main else container
        for container in containers
    )
    return (fetching, *told)


def _identity(job: RLJob, *, role: str, pod: str) -> dict[str, str]:
    return {
        "TRIMTAB_POD__NAMESPACE": job.metadata.namespace or "default",
        "TRIMTAB_POD__JOB": job.metadata.name,
        "TRIMTAB_POD__ROLE": role,
        "TRIMTAB_POD__NAME": pod,
        "TRIMTAB_JOB_FILE": "$(JOB_FILE)",
    }
