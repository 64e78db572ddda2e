"""Rows are what was leased: echoes are not trained, an episode is masked as a whole, and what differs is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.trainer.cut_episodes import Told, Turn, group_lease
from trimtab.api.policy import Policy
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.lease import BatchLease
from trimtab.fabric.wire.trajectory import Trajectory, TurnReward
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.leased_rows import LeasedRows, RowUnusable

TURNS = (Turn(heard=2, said=1, reward=1.0), Turn(heard=1, said=2, reward=0.0))


def told(index: int, *, reward: float, truncated: bool = False) -> Told:
    tokens = 1 + sum(turn.heard + turn.said for turn in TURNS)
    return Told(
        group=0,
        index=index,
        turns=TURNS,
        reward=reward,
        truncated=truncated,
        token_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.array([-0.1, -0.2, -0.3], dtype=np.float32),
    )


def leased(
    *, truncated: bool = False, by_turn: bool = False, **algorithm: Any
) -> tuple[BatchLease, dict[int, bytes], list[list[Trajectory]], LeasedRows]:
    """Two episodes: the first in two rows, the second in one."""
    episodes = [told(0, reward=1.0, truncated=truncated), told(1, reward=0.0)]
    rows = [episodes[0].rows([1, 2], by_turn=by_turn), episodes[1].rows([2], by_turn=by_turn)]
    lease, payloads = group_lease(episodes, rows, first_sequence=1)
    policy = Policy.model_validate(
        {"name": "solver", "model": {"uri": "m"}, "algorithm": {"name": "drgrpo", **algorithm}}
    )
    return lease, payloads, rows, LeasedRows(lease=lease, advantages=AdvantageRule.of(policy))


def test_echoes_are_read_and_not_trained() -> None:
    lease, payloads, _, of_lease = leased()
    first, second, whole = (of_lease.row(sample, payloads[sample.sequence]) for sample in lease.samples)
    assert first.mask.tolist() == [False] * 3 + [True]
    assert second.mask.tolist() == [False] * 5 + [True] * 2
    assert whole.mask.tolist() == [False] * 3 + [True, False, True, True]
    assert second.logprobs.tolist() == pytest.approx([0.0] * 5 + [-0.2, -0.3])
    assert second.versions.tolist() == [-1] * 5 + [0] * 2
    assert (first.episode, first.episode.rows, first.episode.trained_tokens) == (second.episode, 2, 3)
    assert (whole.episode.rows, whole.episode.trained_tokens) == (1, 3)
    assert first.advantages.tolist() == [0.0] * 3 + [0.5]
    assert second.advantages.tolist() == [0.0] * 5 + [0.5] * 2
    assert whole.advantages[whole.mask].tolist() == [-0.5] * 3


def test_of_an_episode_that_was_cut_short_no_row_is_trained() -> None:
    lease, payloads, rows, of_lease = leased(truncated=True, overlong={})
    assert [row.outcome.finish.value for row in rows[0]] == ["stop", "length"]  # type: ignore[union-attr]
    trained = [of_lease.row(sample, payloads[sample.sequence]).trained_tokens for sample in lease.samples]
    assert trained == [0, 0, 3]


def test_a_turn_has_its_own_advantage_in_whichever_row() -> None:
    lease, payloads, _, of_lease = leased(by_turn=True, credit={"type": "Turn", "discount": 0.5})
    first, second, whole = (of_lease.row(sample, payloads[sample.sequence]) for sample in lease.samples)
    assert first.advantages[first.mask].tolist() == [0.25]
    assert second.advantages[second.mask].tolist() == [0.5, 0.5]
    assert whole.advantages[whole.mask].tolist() == [-0.25, -0.5, -0.5]


@pytest.mark.parametrize("turns", [(), (TurnReward(9, 1, 1.0),)], ids=["none", "others"])
def test_a_row_without_the_turns_of_its_header_is_set_aside(
    turns: tuple[TurnReward, ...],
) -> None:
    lease, _, rows, of_lease = leased(by_turn=True, credit={"type": "Turn"})
    changed = msgspec.structs.replace(rows[0][0], turn_rewards=turns)
    with pytest.raises(RowUnusable, match="turns"):
        of_lease.row(lease.samples[0], encode(changed))
    blank = of_lease.blank(lease.samples[0])
    assert (blank.trained_tokens, blank.episode.rows, blank.episode.trained_tokens) == (0, 2, 3)
