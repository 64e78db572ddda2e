"""What a job that resumes another one asks of it, the same on one machine and in a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trimtab.api.job import RLJobSpec
from trimtab.api.pod_template import template_command
from trimtab.api.resume import BEST
from trimtab.fabric.wire.evaluation import EvaluationResult

_FIELD = "spec.resumeFrom"
MOST_CHECKPOINTS = 1000
"""As many as a job may keep: of versions that were evaluated where checkpoints are made, no older one can be there."""


class NoBestStep(ValueError):
    """It cannot be said which did best; the message names the field and the fix."""


def refusal(spec: RLJobSpec) -> str | None:
    """Why it cannot be done whatever the other job is, with the fix."""
    if spec.resume_from is None:
        return None
    if spec.resume_from.step == BEST and spec.resume_from.job is None:
        return (
            f"{_FIELD}.step: Best goes by the scores of a job, and of a checkpoint nobody knows which job's; name the"
            " job in place of it, or give the number of a step"
        )
    own = [policy.name for policy in spec.learning if template_command(policy.trainer.template, container="trainer")]
    if own:
        return (
            f"{_FIELD}: the trainer of policies[{own[0]}] is one of your own, which knows best where to begin; leave"
            " resumeFrom out, and let it read the checkpoint itself"
        )
    return None


def unlike(source: RLJobSpec, policies: Sequence[str], *, name: str, namespace: str, public_key: str) -> str | None:
    """Why the job of this name does not have what these policies could begin with in its own store."""
    return _missing(source, policies, name=name) or _elsewhere(
        source, policies, name=name, namespace=namespace, public_key=public_key
    )


def ranked(results: Iterable[EvaluationResult], *, policy: str) -> tuple[int, ...]:
    """Steps of the policy whose weights were evaluated, the best first and of equal ones the newest. Raises
    NoBestStep."""
    scores = {(one.benchmark, one.version): one.score for one in results if one.policy == policy}
    own = [(score, version, benchmark) for (benchmark, version), score in scores.items() if score is not None]
    benchmarks = sorted({benchmark for _, _, benchmark in own})
    if not own:
        raise NoBestStep(
            f"{_FIELD}.step: no version of {policy} was evaluated; wait until one was, as spec.evaluation of that job"
            " asks for it, or give the number of a step in place of Best"
        )
    if len(benchmarks) > 1:
        raise NoBestStep(
            f"{_FIELD}.step: {policy} was evaluated on {', '.join(benchmarks)}; give the number of a step, by `trimtab"
            " evaluation`, in place of Best"
        )
    newest = sorted(own, key=lambda one: one[1], reverse=True)[:MOST_CHECKPOINTS]
    return tuple(version for _, version, _ in sorted(newest, reverse=True))


def itself(name: str) -> str:
    """A job that names itself."""
    return f"{_FIELD}.job: {name} is this job itself; name another one, or leave resumeFrom out"


def _missing(source: RLJobSpec, policies: Sequence[str], *, name: str) -> str | None:
    """Policies that begin there and are not trained there."""
    there = [policy.name for policy in source.learning]
    missing = [policy for policy in policies if policy not in there]
    if not missing:
        return None
    return (
        f"{_FIELD}.job: {name} trains no policy {missing[0]}, but {', '.join(there)}; a policy that resumes one must"
        " have its name"
    )


def _elsewhere(source: RLJobSpec, policies: Sequence[str], *, name: str, namespace: str, public_key: str) -> str | None:
    """Checkpoints that are not in the object store of their job are named by their place."""
    for policy in source.learning:
        uri = policy.trainer.checkpoint.uri
        if policy.name in policies and uri is not None:
            return (
                f"{_FIELD}.job: {name} has the checkpoints of {policy.name} at {uri}, and not in its own store; in"
                f" place of job say checkpoint: {uri.rstrip('/')}/{namespace}/{name} and publicKey: {public_key}"
            )
    return None
