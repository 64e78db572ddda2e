"""Which versions are kept for what they scored, and where they lie."""

from __future__ import annotations

from tests.support.weights.sealed_samples import catalogue, entry
from trimtab.fabric.wire.best_versions import BestVersion
from trimtab.weights.store.kept import NOTHING_KEPT, Kept, kept_after
from trimtab.weights.store.position import Position

V = [Position(1, version) for version in range(20)]
AGAIN = [Position(2, version) for version in range(20)]
BEFORE = catalogue([entry(V[0]), *(entry(V[n], V[n - 1]) for n in range(1, 8))])


def best(version: int, score: float, benchmark: str = "held-out") -> BestVersion:
    return BestVersion(benchmark=benchmark, version=version, score=score)


def positions(kept: Kept) -> dict[str, Position]:
    return {one.benchmark: one.position for one in kept.versions}


def test_each_benchmark_keeps_its_best() -> None:
    kept = kept_after(NOTHING_KEPT, [best(5, 0.5), best(3, 0.9, "aime")], BEFORE)
    assert positions(kept) == {"held-out": V[5], "aime": V[3]}
    assert positions(kept_after(kept, [best(6, 0.6), best(3, 0.9, "aime")], BEFORE)) == {"held-out": V[6], "aime": V[3]}


def test_a_version_that_is_made_anew_does_not_take_the_place_of_the_one_that_was_scored() -> None:
    kept = kept_after(NOTHING_KEPT, [best(7, 0.5)], BEFORE)
    resumed = BEFORE.adding(entry(AGAIN[6], V[5]), entry(AGAIN[7], AGAIN[6]))
    assert positions(kept_after(kept, [best(7, 0.5)], resumed)) == {"held-out": V[7]}
    assert positions(kept_after(kept, [best(7, 0.6)], resumed)) == {"held-out": AGAIN[7]}, "it was scored itself"


def test_what_cannot_be_fetched_is_not_kept() -> None:
    assert kept_after(NOTHING_KEPT, [best(15, 0.5)], BEFORE) == NOTHING_KEPT
