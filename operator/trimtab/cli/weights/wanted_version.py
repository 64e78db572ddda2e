"""Which version `trimtab weights pull` brings: the newest, one by its number, or the one that did best when it was
evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trimtab.cli.job_bucket import bucket_entries, readable_errors, readable_values
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.weights.store.kept import NOTHING_KEPT, Kept, position_of
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import joinable

_EVERY_RESULT = "*.evaluation.*.*"
_LISTED = 12


@dataclass(frozen=True, kw_only=True)
class Scored:
    policy: str
    benchmark: str
    version: int
    score: float


class NoSuchVersion(ValueError):
    """The message says which there are."""


def by_number(latest: Latest, version: int) -> Position:
    """Of several lineages the newest one's. Raises NoSuchVersion."""
    found = position_of(latest, version)
    if found is None:
        raise NoSuchVersion(f"version {version} cannot be fetched; {_listed(joinable(latest))}")
    return found


def kept_best(latest: Latest, kept: Kept, *, policy: str, benchmark: str | None) -> Position:
    """By what the store itself says. Raises NoSuchVersion."""
    scores = [
        Scored(policy=policy, benchmark=one.benchmark, version=one.position.version, score=one.score)
        for one in kept.versions
    ]
    return best(latest, scores, policy=policy, benchmark=benchmark, kept=kept)


def best(
    latest: Latest, scores: Iterable[Scored], *, policy: str, benchmark: str | None, kept: Kept = NOTHING_KEPT
) -> Position:
    """Of equal scores the newest version. Raises NoSuchVersion."""
    own = [score for score in scores if score.policy == policy]
    benchmarks = sorted({score.benchmark for score in own})
    if not own:
        raise NoSuchVersion(f"no version of {policy} has been evaluated; spec.evaluation asks for it")
    if benchmark is None and len(benchmarks) > 1:
        raise NoSuchVersion(f"{policy} was evaluated on {', '.join(benchmarks)}; choose with --benchmark")
    if benchmark is not None and benchmark not in benchmarks:
        raise NoSuchVersion(f"{policy} was not evaluated on {benchmark}, but on {', '.join(benchmarks)}")
    ranked = sorted(
        (score for score in own if benchmark in (None, score.benchmark)),
        key=lambda score: (score.score, score.version),
        reverse=True,
    )
    pinned = kept.of(ranked[0].benchmark)
    if pinned is not None and pinned.position.version == ranked[0].version and pinned.position in joinable(latest):
        return pinned.position
    there = {position.version for position in joinable(latest)}
    if ranked[0].version not in there:
        left = next((score for score in ranked if score.version in there), None)
        other = "" if left is None else f"; of those that are there it is version {left.version}, {left.score:.3f}"
        raise NoSuchVersion(
            f"version {ranked[0].version} did best, {ranked[0].score:.3f}, and was collected since{other}; "
            "evaluation.keepBest keeps the best, and trainer.publish.keepVersions says how many others are kept"
        )
    return by_number(latest, ranked[0].version)


def results_of(topology: JobTopology, *, state_folder: Path | None) -> list[EvaluationResult]:
    """Of a job whose NATS server the environment names, or of one of `trimtab run`."""
    with readable_errors():
        entries = bucket_entries(topology, topology.balance, keys=_EVERY_RESULT, state_folder=state_folder)
    return readable_values(entries, EvaluationResult)


def scores_of(topology: JobTopology, *, state_folder: Path | None) -> list[Scored]:
    """Of those in which an episode did not fail."""
    return [
        Scored(policy=one.policy, benchmark=one.benchmark, version=one.version, score=one.score)
        for one in results_of(topology, state_folder=state_folder)
        if one.score is not None
    ]


def _listed(there: set[Position]) -> str:
    versions = sorted({position.version for position in there}, reverse=True)
    shown = ", ".join(map(str, versions[:_LISTED])) or "none"
    return f"there are those of versions {shown}{' and earlier ones' if len(versions) > _LISTED else ''}"
