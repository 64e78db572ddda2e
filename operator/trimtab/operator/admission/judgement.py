"""Whether the API server takes an object as it is about to be written: the words of `trimtab validate`, and what only a
cluster refuses. Pure; the webhook is around it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.api import labels
from trimtab.api.coverage import cannot_serve
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.review import review, scale_warnings
from trimtab.api.validation import parse
from trimtab.kube.resources import ROLLOUT_POOLS, Object
from trimtab.operator.reconcile.refusals import overlong_spec, refusal_of

_MOST_PROBLEMS = 20


@dataclass(frozen=True, kw_only=True)
class Judgement:
    refusal: str | None = None
    """Every problem with field and fix; None when the object is taken."""
    warnings: tuple[str, ...] = ()


def judge(new: Object, *, old: Object | None, job: RLJob | None) -> Judgement:
    """`job` is that of a RolloutPool, as far as it is known.

    A write that leaves the spec as it is says nothing new, and one to an object that goes must not be held up: a bad
    object that came in while the webhook was down gets its status, loses its finalizer and can be deleted.
    """
    if new["metadata"].get("deletionTimestamp") or not changes_spec(new, old=old):
        return Judgement()
    if (overlong := overlong_spec(new.get("spec"))) is not None:
        return Judgement(refusal=overlong)
    written = _as_written(new)
    reviewed = review(written)
    problems = [f"{problem.field or 'document'}: {problem.message}" for problem in reviewed.problems]
    if problems:
        return Judgement(refusal=_listed(problems), warnings=reviewed.warnings)
    resource = parse(written)
    warnings = list(reviewed.warnings)
    if isinstance(resource, RolloutPool) and job is not None:
        why = cannot_serve(job.spec, resource.spec, name=_pool_name(new))
        if why is not None:
            return Judgement(refusal=f"spec.engines: {why}", warnings=tuple(warnings))
    if isinstance(resource, RolloutPool) and is_scaled(new, old=old):
        warnings += scale_warnings(resource, resource.spec.replicas, job)
    return Judgement(refusal=refusal_of(resource.spec), warnings=tuple(warnings))


def changes_spec(new: Object, *, old: Object | None) -> bool:
    return old is None or old.get("spec") != new.get("spec")


def is_scaled(new: Object, *, old: Object | None) -> bool:
    """Whether the write gives a pool another size, by a change of its spec."""
    if old is None or new["kind"] != ROLLOUT_POOLS.kind:
        return False
    sizes = [(pool.get("spec") or {}).get("replicas") for pool in (old, new)]
    return sizes[0] != sizes[1]


def judge_scale(pool: RolloutPool, replicas: int, *, job: RLJob | None) -> Judgement:
    """`kubectl scale` is never refused."""
    return Judgement(warnings=tuple(scale_warnings(pool, replicas, job)))


def _pool_name(item: Object) -> str:
    metadata = item["metadata"]
    return str((metadata.get("labels") or {}).get(labels.POOL) or metadata.get("name") or "")


def _as_written(item: Object) -> Object:
    """Without what the API server has added."""
    metadata = {
        name: value for name, value in item["metadata"].items() if name in ("name", "generateName", "namespace")
    }
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": metadata, "spec": item.get("spec")}


def _listed(problems: list[str]) -> str:
    shown = problems[:_MOST_PROBLEMS]
    more = [f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
    return "\n".join([*shown, *more])
