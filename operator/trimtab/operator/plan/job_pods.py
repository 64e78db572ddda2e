"""The pods of an RLJob: one dataflow, the ranks of each policy's trainer, the replicas of each pool."""

from __future__ import annotations

from trimtab.api import names
from trimtab.api.job import RLJob
from trimtab.api.pod_template import template_command
from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool
from trimtab.operator.plan.engine_containers import engine_containers, engine_urls
from trimtab.operator.plan.pods import ContainerPlan, PodPlan, Restart

_DATAFLOW_GRACE_S = 10.0


def dataflow_pods(job: RLJob) -> list[PodPlan]:
    name = names.dataflow_pod_name(job.metadata.name, 0)
    container = ContainerPlan(
        name="dataflow",
        command=("python", "-m", "trimtab.dataflow"),
        environment=_identity(job, role="dataflow", pod=name) | {"TRIMTAB_SCRATCH": "$(SCRATCH)/prompts"},
    )
    return [
        PodPlan(name=name, role="dataflow", containers=(container,), restart=Restart.ALWAYS, grace_s=_DATAFLOW_GRACE_S)
    ]


def trainer_group(job: RLJob, policy: Policy) -> str:
    return names.trainer_name(job.metadata.name, policy.name)


def trainer_pods(job: RLJob, policy: Policy, *, attempt: int) -> list[PodPlan]:
    """One pod per rank. They find each other at $(MASTER_ADDR): the one place where pods of a job talk directly."""
    group = trainer_group(job, policy)
    ranks = policy.trainer.replicas
    pods = []
    for rank in range(ranks):
        name = names.trainer_pod_name(group, rank)
        ours = (
            "python", "-m", "torch.distributed.run",
            f"--nnodes={ranks}", f"--node-rank={rank}", "--nproc-per-node=1", "--max-restarts=0",
            "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)",
            "-m", "trimtab.trainer",
        )  # fmt: skip
        container = ContainerPlan(
            name="trainer",
            command=template_command(policy.trainer.template, container="trainer") or ours,
            environment=_identity(job, role="trainer", pod=name)
            | {
                "TRIMTAB_POD__POLICY": policy.name,
                "TRIMTAB_ATTEMPT": str(attempt),
                "TRIMTAB_SCRATCH": "$(SCRATCH)/weights",
            },
        )  # fmt: skip
        pods.append(
            PodPlan(
                name=name,
                role="trainer",
                containers=(container,),
                restart=Restart.NEVER,
                grace_s=policy.trainer.grace_period_seconds,
                group=group,
                attempt=attempt,
            )
        )
    return pods


def pool_pods(job: RLJob, pool: JobPool, *, replicas: int) -> list[PodPlan]:
    pool_name = names.pool_name(job.metadata.name, pool.name)
    return [_rollout_pod(job, pool, names.rollout_pod_name(pool_name, ordinal)) for ordinal in range(replicas)]


def _rollout_pod(job: RLJob, pool: JobPool, name: str) -> PodPlan:
    """A worker and the engines it samples from, side by side: when one dies, the others stay."""
    policies = [policy for policy in job.spec.policies if pool.policies is None or policy.name in pool.policies]
    worker = ContainerPlan(
        name="worker",
        command=("python", "-m", "trimtab.rollout"),
        environment=_identity(job, role="rollout", pod=name)
        | {
            "TRIMTAB_POD__POOL": pool.name,
            "TRIMTAB_ENGINES": engine_urls(pool, policies),
            "TRIMTAB_SCRATCH": "$(SCRATCH)/weights",
        },
        secrets={} if pool.engine.api_key_secret is None else {"TRIMTAB_ENGINE__API_KEY": pool.engine.api_key_secret},
    )
    return PodPlan(
        name=name,
        role="rollout",
        containers=(*engine_containers(pool, policies), worker),
        restart=Restart.ALWAYS,
        grace_s=pool.grace_period_seconds,
    )


def _identity(job: RLJob, *, role: str, pod: str) -> dict[str, str]:
    return {
        "TRIMTAB_POD__NAMESPACE": job.metadata.namespace or "default",
        "TRIMTAB_POD__JOB": job.metadata.name,
        "TRIMTAB_POD__ROLE": role,
        "TRIMTAB_POD__NAME": pod,
        "TRIMTAB_JOB_FILE": "$(JOB_FILE)",
    }
