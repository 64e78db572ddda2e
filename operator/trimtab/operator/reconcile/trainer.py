"""One reconcile of a Trainer: its plan, what the trainer reports of itself, and its ranks as one gang."""

from __future__ import annotations

from trimtab.api.trainer import Trainer
from trimtab.kube.resources import Key
from trimtab.operator.plan.trainer import plan_trainer
from trimtab.operator.reconcile.actions import Executor
from trimtab.operator.reconcile.cluster import Cluster, Result, WorkKey
from trimtab.operator.reconcile.execution import accepted_conditions, carry_out, forgotten
from trimtab.operator.reconcile.home_cluster import HomeCluster
from trimtab.operator.reconcile.isolation import forget_network
from trimtab.operator.reconcile.observation import is_ours, job_of, pods_of
from trimtab.operator.reconcile.ownership import is_leaving
from trimtab.operator.reconcile.refusals import refusal_of


async def reconcile_trainer(cluster: Cluster, key: WorkKey) -> Result:
    item = cluster.trainers.get(key.key)
    if item is None or is_leaving(item):
        if item is not None:
            forget_network(cluster, item["metadata"]["uid"])
        return forgotten(cluster, key)
    trainer = cluster.trainers.read(item)
    job, typed_job = job_of(cluster, item, trainer.spec.job_ref.name)
    if not is_ours(typed_job):
        return Result()
    now, home = cluster.clock(), HomeCluster(cluster=cluster, owner=item)
    pods = pods_of(cluster, home, Key(key.namespace, trainer.spec.job_ref.name))
    plan = plan_trainer(typed_job, trainer, pods, now=now)
    status = plan.status.model_copy(
        update={
            **_progress_of(cluster, trainer),
            "conditions": accepted_conditions(cluster, key, plan.status, trainer, now=now),
        }
    )
    executor = Executor(cluster=cluster, owner=item, typed=trainer, job=job, typed_job=typed_job, pod_cluster=home)
    actions = plan.actions if refusal_of(trainer.spec) is None else ()
    # A gang that is started in part would be taken down again.
    return await carry_out(executor, status, trainer.status, actions, requeue_at=plan.requeue_at, at_once=True)


def _progress_of(cluster: Cluster, trainer: Trainer) -> dict[str, object]:
    """What the trainer itself reports; nothing before its first report."""
    job = Key(trainer.metadata.namespace or "", trainer.spec.job_ref.name)
    report = cluster.watches.snapshot(job).report.policies.get(trainer.spec.policy)
    if report is None:
        return {}
    return {
        "step": report.step,
        "version": report.version,
        "reward": report.reward,
        "waiting_fraction": report.waiting_fraction,
        "staleness": report.staleness,
        "tokens_per_second": report.tokens_per_second,
        "skipped_steps": report.skipped_steps,
        "unarchived_steps": report.unarchived_steps,
        "checkpoint_step": report.checkpoint_step,
    }
