"""What a critic's values say of turns: how much nearer each came, and nothing that sums to more than the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from trimtab.rollout.stages.computed import StageAnswerError
from trimtab.rollout.stages.contract import Numbers, StageContext, StageRow
from trimtab.rollout.stages.progress import Progress

_CONTEXT = StageContext(group_id="g", policy="solver", prompt={}, label="", team=None)


def row(*, turns: Sequence[int], columns: Mapping[str, Sequence[float]]) -> StageRow:
    """A prompt of one token before each turn of so many tokens."""
    mask = np.concatenate([[False, *[True] * tokens] for tokens in turns]).astype(np.bool_)
    numbers: dict[str, Numbers] = {name: np.array(column, dtype=np.float32) for name, column in columns.items()}
    return StageRow(
        trajectory_id="g.0.0",
        token_ids=np.arange(len(mask), dtype=np.int32),
        mask=mask,
        text="",
        answer="",
        reward=1.0,
        turn_tokens=tuple(turns),
        columns=numbers,
    )


async def test_a_turn_is_worth_what_it_adds_to_what_is_expected() -> None:
    told = await Progress(stage="values").compute(
        row(turns=(2, 1, 3), columns={"values": [0.25, 9, 0.75, 0.5, 9, 9]}), _CONTEXT
    )
    assert told == pytest.approx([0.5, -0.25, -0.5])


async def test_all_turns_and_the_outcome_are_worth_the_outcome_less_what_was_expected() -> None:
    told = await Progress(stage="values").compute(row(turns=(1, 1), columns={"values": [0.25, 0.9]}), _CONTEXT)
    assert 1.0 + sum(told) == pytest.approx(1.0 - 0.25)


async def test_the_weight_scales_progress() -> None:
    one = row(turns=(1, 1), columns={"values": [0.25, 0.75]})
    assert await Progress(stage="values", weight=2.0).compute(one, _CONTEXT) == pytest.approx([1.0, -1.5])


@pytest.mark.parametrize(
    ("columns", "turns", "says"),
    [
        ({"other": [1.0]}, (1,), "no column 'values': the stages that this one needs are other"),
        ({"values": [1.0]}, (1, 1), "name a stage that computes Values"),
    ],
)
async def test_another_column_is_refused_by_name(
    columns: Mapping[str, Sequence[float]], turns: Sequence[int], says: str
) -> None:
    with pytest.raises(StageAnswerError, match=says):
        await Progress(stage="values").compute(row(turns=turns, columns=columns), _CONTEXT)


def test_a_weight_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="weight is 0"):
        Progress(stage="values", weight=0)
