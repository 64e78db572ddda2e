"""Which version `trimtab weights pull` brings, of those that can still be fetched."""

from __future__ import annotations

import pytest

from trimtab.cli.weights.wanted_version import NoSuchVersion, Scored, best, by_number, kept_best
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.kept import Kept, KeptVersion
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position

SHA = "0" * 64


def entry(target: Position, base: Position | None) -> Entry:
    return Entry(base=base, target=target, bytes=100, manifest=SHA, root=SHA)


def at(version: int, epoch: int = 1) -> Position:
    return Position(epoch, version)


# Version 2 lost its way there when version 1 was collected; version 5 was published twice, by two epochs.
LATEST = Latest(epoch=2).adding(
    entry(at(2), at(1)),
    entry(at(4), None),
    entry(at(5), at(4)),
    entry(at(5, 2), at(4)),
    entry(at(6, 2), at(5, 2)),
)


def scored(version: int, score: float, benchmark: str = "held-out", policy: str = "p") -> Scored:
    return Scored(policy=policy, benchmark=benchmark, version=version, score=score)


def test_a_version_by_its_number_is_of_the_newest_lineage() -> None:
    assert by_number(LATEST, 5) == at(5, 2)
    for gone in (2, 7):
        with pytest.raises(NoSuchVersion, match=rf"version {gone} .* there are those of versions 6, 5, 4"):
            by_number(LATEST, gone)


def test_the_best_is_of_the_highest_score_and_of_equal_ones_the_newest() -> None:
    scores = [scored(4, 0.5), scored(5, 0.7), scored(6, 0.7), scored(4, 0.9, policy="q")]
    assert best(LATEST, scores, policy="p", benchmark=None) == at(6, 2)


def test_one_that_was_collected_is_named_with_the_best_that_is_left() -> None:
    with pytest.raises(NoSuchVersion, match=r"version 2 did best, 0\.900, .* it is version 4, 0\.500"):
        best(LATEST, [scored(2, 0.9), scored(4, 0.5)], policy="p", benchmark=None)


def test_of_several_benchmarks_one_is_chosen() -> None:
    scores = [scored(4, 0.5), scored(5, 0.7, benchmark="aime"), scored(6, 0.1, benchmark="aime")]
    assert best(LATEST, scores, policy="p", benchmark="aime") == at(5, 2)
    with pytest.raises(NoSuchVersion, match="aime, held-out; choose with --benchmark"):
        best(LATEST, scores, policy="p", benchmark=None)
    with pytest.raises(NoSuchVersion, match="no version of q has been evaluated"):
        best(LATEST, scores, policy="q", benchmark=None)


def test_what_the_trainer_has_kept_is_found_without_the_job_and_exactly() -> None:
    kept = Kept(versions=(KeptVersion(benchmark="held-out", position=at(5), score=0.7),))
    assert kept_best(LATEST, kept, policy="p", benchmark=None) == at(5), "not the one that was made anew"
    scores = [scored(4, 0.5), scored(5, 0.7)]
    assert best(LATEST, scores, policy="p", benchmark=None, kept=kept) == at(5)
    assert best(LATEST, [*scores, scored(6, 0.9)], policy="p", benchmark=None, kept=kept) == at(6, 2)
    with pytest.raises(NoSuchVersion, match="not evaluated on aime, but on held-out"):
        kept_best(LATEST, kept, policy="p", benchmark="aime")
