"""Which of the checkpoints that are kept a new job begins at."""

from __future__ import annotations

import pytest

from trimtab.trainer.checkpoints.index import IndexReference
from trimtab.trainer.checkpoints.origin import NoSuchCheckpoint, chosen, first_kept

SHA = "0" * 64


def kept(*steps: int) -> tuple[IndexReference, ...]:
    return tuple(
        IndexReference(step=step, epoch=1, name=f"index-{number}", size=1, sha256=SHA)
        for number, step in enumerate(steps)
    )


def test_the_newest_or_the_one_of_a_step() -> None:
    assert chosen(kept(9, 6, 3), None).step == 9
    assert chosen(kept(9, 6, 3), 6).step == 6
    with pytest.raises(NoSuchCheckpoint, match=r"no checkpoint of step 0; there are those of 9, 6, 3\. .*keep"):
        chosen(kept(9, 6, 3), 0)
    with pytest.raises(NoSuchCheckpoint, match="there is no checkpoint yet"):
        chosen((), None)


def test_the_best_is_the_first_of_those_that_did_best_which_is_kept() -> None:
    assert first_kept(kept(9, 6, 3), (1, 6, 9, 3)).step == 6
    assert first_kept(kept(9, 6, 6, 3), (6,)).name == "index-1"


def test_where_none_of_the_best_is_kept_it_is_said_what_to_do() -> None:
    with pytest.raises(NoSuchCheckpoint, match=r"of steps 9, 6, was evaluated; .* evaluation\.everySteps"):
        first_kept(kept(9, 6), (8,))
    with pytest.raises(NoSuchCheckpoint, match="there is no checkpoint yet"):
        first_kept((), (8,))
