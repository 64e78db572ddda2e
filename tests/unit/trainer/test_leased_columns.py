"""A row has the numbers that stages computed of it, and of a column that is anything else no row is trained."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.trainer.cut_episodes import Told, Turn, group_lease
from trimtab.api.policy import Policy
from trimtab.fabric.wire.column import Column
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.lease import BatchLease
from trimtab.fabric.wire.stage import ColumnReference
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.leased_columns import LeasedColumns
from trimtab.trainer.leased_rows import LeasedRows, RowUnusable

TURNS = (Turn(heard=2, said=1, reward=1.0), Turn(heard=1, said=2, reward=0.0))
AT = 7


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


class Joined:
    """Two episodes: the first in two rows, with one and two trained tokens, the second in one, with three."""

    def __init__(
        self, payload: Any = None, *, by_rows: bool = False, truncated: bool = False, **algorithm: Any
    ) -> None:
        episodes = [told(0, reward=1.0, truncated=truncated), told(1, reward=0.0)]
        self.rows = [*episodes[0].rows([1, 2], by_turn=True), *episodes[1].rows([2], by_turn=True)]
        lease, self.payloads = group_lease(episodes, [self.rows[:2], self.rows[2:]], first_sequence=1)
        group = msgspec.structs.replace(lease.groups[0], columns=(ColumnReference(stage="reference", sequence=AT),))
        self.lease: BatchLease = msgspec.structs.replace(lease, groups=(group,), columns_stream="COLUMNS")
        policy = Policy.model_validate(
            {"name": "solver", "model": {"uri": "m"}, "algorithm": {"name": "drgrpo", **algorithm}}
        )
        columns = LeasedColumns(
            computed_with={AT: 4},
            payloads={AT: payload if payload is not None else encode(self.column())},
            by_rows=frozenset({"reference"}) if by_rows else frozenset(),
        )
        self.leased = LeasedRows(lease=self.lease, advantages=AdvantageRule.of(policy), columns=columns)

    def column(self, **changes: Any) -> Column:
        fields: dict[str, Any] = {
            "job": "job",
            "stage": "reference",
            "policy": "solver",
            "group_id": self.lease.groups[0].group_id,
            "run": "a",
            "trajectory_ids": tuple(row.trajectory_id for row in self.rows),
            "lengths": tuple(row.trained_tokens for row in self.rows),
            "values": np.arange(1, 7, dtype=np.float32),
        }
        return Column(**fields | changes)

    def row(self, number: int) -> Any:
        sample = self.lease.samples[number]
        return self.leased.row(sample, self.payloads[sample.sequence])


def test_each_trained_token_has_its_number_and_no_other_has_one() -> None:
    joined = Joined()
    first, second, whole = (joined.row(number) for number in range(3))
    assert first.columns["reference"].tolist() == [0.0] * 3 + [1.0]
    assert second.columns["reference"].tolist() == [0.0] * 5 + [2.0, 3.0]
    assert whole.columns["reference"].tolist() == [0.0] * 3 + [4.0, 0.0, 5.0, 6.0]
    for row in (first, second, whole):
        assert row.columns["reference"].dtype == np.float32
        assert len(row.columns["reference"]) == len(row.token_ids)


def test_rows_are_joined_by_id_and_not_by_place() -> None:
    made = Joined()
    turned = made.column(
        trajectory_ids=tuple(row.trajectory_id for row in made.rows[::-1]),
        lengths=(3, 2, 1),
        values=np.array([4, 5, 6, 2, 3, 1], dtype=np.float32),
    )
    joined = Joined(encode(turned))
    assert joined.row(0).columns["reference"].tolist() == [0.0] * 3 + [1.0]
    assert joined.row(1).columns["reference"].tolist() == [0.0] * 5 + [2.0, 3.0]


def test_of_an_episode_that_is_masked_nothing_is_left_in_its_columns() -> None:
    joined = Joined(truncated=True, overlong={})
    assert not joined.row(0).columns["reference"].any()
    assert joined.row(2).columns["reference"].any()


def test_one_number_for_a_row_or_a_turn_is_that_of_all_its_tokens_where_the_stage_may_say_so() -> None:
    made = Joined()
    by_row = made.column(lengths=(1, 1, 1), values=np.array([7, 8, 9], dtype=np.float32))
    joined = Joined(encode(by_row), by_rows=True)
    assert joined.row(1).columns["reference"].tolist() == [0.0] * 5 + [8.0, 8.0]
    by_turn = made.column(lengths=(1, 1, 2), values=np.array([7, 8, 9, 10], dtype=np.float32))
    joined = Joined(encode(by_turn), by_rows=True)
    assert joined.row(2).columns["reference"].tolist() == [0.0] * 3 + [9.0, 0.0, 10.0, 10.0]
    strict = Joined(encode(by_row))
    assert strict.row(0).columns["reference"].tolist() == [0.0] * 3 + [7.0], "it has one trained token"
    with pytest.raises(RowUnusable, match="1 numbers for 2 trained tokens"):
        strict.row(1)


def _without_the_second(made: Joined) -> bytes:
    ids = tuple(row.trajectory_id for row in made.rows)
    values = np.arange(4, dtype=np.float32)
    return encode(made.column(trajectory_ids=(ids[0], ids[2]), lengths=(1, 3), values=values))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (lambda made: encode(made.column(stage="teacher")), "leased was what reference says"),
        (lambda made: encode(made.column(group_id="t9.solver")), "what reference says of t9.solver"),
        (_without_the_second, "says nothing of the row"),
        (lambda made: encode(made.column(lengths=(1, 3, 2))), "3 numbers for 2 trained tokens"),
        (lambda made: encode(made.rows[0]), "column 7 of reference"),
        (lambda made: b"", "column 7 of reference"),
        (lambda made: encode(made.column())[:-1], "column 7 of reference"),
        (lambda made: ValueError("gone from the store"), "gone from the store"),
    ],
    ids=["another stage", "another group", "no word", "another length", "a row", "nothing", "cut", "no object"],
)
def test_a_row_whose_column_is_not_what_was_leased_is_set_aside(payload: Any, reason: str) -> None:
    joined = Joined(payload(Joined()))
    with pytest.raises(RowUnusable, match=reason):
        joined.row(1)
    blank = joined.leased.blank(joined.lease.samples[1])
    assert (blank.trained_tokens, blank.columns["reference"].tolist()) == (0, [0.0])


def test_a_column_that_is_not_there_is_no_column_of_zeros() -> None:
    joined = Joined()
    nothing = LeasedRows(lease=joined.lease, advantages=joined.leased.advantages, columns=LeasedColumns(payloads={}))
    sample = joined.lease.samples[0]
    with pytest.raises(RowUnusable, match="is not there"):
        nothing.row(sample, joined.payloads[sample.sequence])
    without = LeasedRows(lease=joined.lease, advantages=joined.leased.advantages)
    with pytest.raises(RowUnusable, match="columns"):
        without.row(sample, joined.payloads[sample.sequence])


def test_rows_of_a_lease_without_columns_have_none() -> None:
    joined = Joined()
    plain = msgspec.structs.replace(joined.lease, groups=(msgspec.structs.replace(joined.lease.groups[0], columns=()),))
    sample = plain.samples[0]
    row = LeasedRows(lease=plain, advantages=joined.leased.advantages).row(sample, joined.payloads[sample.sequence])
    assert dict(row.columns) == {}


def test_a_row_knows_which_version_computed_its_column() -> None:
    joined = Joined()
    sample = joined.lease.samples[0]
    assert joined.leased.row(sample, joined.payloads[sample.sequence]).column_versions == {"reference": 4}


def test_a_row_without_the_column_that_its_algorithm_needs_is_set_aside() -> None:
    joined = Joined(kl={"coefficient": 0.1, "stage": "another"})
    sample = joined.lease.samples[0]
    with pytest.raises(RowUnusable, match="it has no column of another, which its algorithm needs"):
        joined.leased.row(sample, joined.payloads[sample.sequence])


def test_advantages_are_made_of_the_column_of_the_row() -> None:
    joined = Joined(name="distill", distill={"stage": "reference"})
    sample = joined.lease.samples[1]
    row = joined.leased.row(sample, joined.payloads[sample.sequence])
    np.testing.assert_allclose(row.advantages[row.mask], [2.0 + 0.2, 3.0 + 0.3], rtol=1e-6)
