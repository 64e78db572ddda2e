"""Which of the checkpoints that are kept a new job begins at."""

from __future__ import annotations

import pytest

from trimtab.cli.resuming import best
from trimtab.cli.weights.wanted_version import Scored
from trimtab.trainer.checkpoints.index import IndexReference
from trimtab.trainer.checkpoints.origin import NoSuchCheckpoint, chosen

SHA = "0" * 64


def kept(*steps: int) -> tuple[IndexReference, ...]:
    return tuple(IndexReference(step=step, epoch=1, name=f"index-{step}", size=1, sha256=SHA) for step in steps)


def scored(version: int, score: float, *, benchmark: str = "held-out", policy: str = "p") -> Scored:
    return Scored(policy=policy, benchmark=benchmark, version=version, score=score)


def test_the_newest_or_the_one_of_a_step() -> None:
    assert chosen(kept(9, 6, 3), None).step == 9
    assert chosen(kept(9, 6, 3), 6).step == 6
    with pytest.raises(NoSuchCheckpoint, match=r"no checkpoint of step 0; there are those of 9, 6, 3\. .*keep"):
        chosen(kept(9, 6, 3), 0)
    with pytest.raises(NoSuchCheckpoint, match="there is no checkpoint yet"):
        chosen((), None)


def test_the_best_is_one_of_those_that_are_kept_and_of_equal_ones_the_newest() -> None:
    scores = [scored(1, 0.9), scored(6, 0.7), scored(9, 0.7), scored(3, 0.8, policy="q")]
    assert best(kept(9, 6, 3), scores, policy="p").step == 9
    assert best(kept(9, 6, 3), scores, policy="q").step == 3


def test_where_the_best_cannot_be_known_it_is_said_what_to_do() -> None:
    with pytest.raises(NoSuchCheckpoint, match=r"of steps 9, 6, was evaluated; .* evaluation\.everySteps"):
        best(kept(9, 6), [scored(8, 0.5)], policy="p")
    both = [scored(9, 0.5), scored(9, 0.1, benchmark="aime")]
    with pytest.raises(NoSuchCheckpoint, match="aime, held-out; give the number of a step"):
        best(kept(9), both, policy="p")
    with pytest.raises(NoSuchCheckpoint, match="there is no checkpoint yet"):
        best((), both, policy="p")
