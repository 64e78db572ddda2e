"""Dealing rows to ranks."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dataflow.books import allotments, group, sample
from trimtab.dataflow.dealt_leases import DealtLeases
from trimtab.dataflow.leases import DealtPortion, LeaseTerms, deal, step_totals
from trimtab.dataflow.ledger.groups import Allotment, Group
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.lease import BatchLease, BatchRequest, StepTotals
from trimtab.fabric.wire.stage import ColumnReference

sizes = st.lists(st.integers(1, 3000), min_size=1, max_size=60)


def asking(*, rank: int, world_size: int, step: int = 4, chunk: int = 0) -> BatchRequest:
    return BatchRequest(job="job", policy="solver", step=step, rank=rank, world_size=world_size, chunk=chunk)


def leased(groups: list[Group], *, world_size: int) -> list[BatchLease]:
    portion = allotments(groups)
    terms = LeaseTerms(totals=step_totals(portion), stream="S", issued_at=1.0, expires_at=6.0)
    dealt = DealtPortion(portion, terms, world_size=world_size)
    return [decode(dealt.lease(asking(rank=rank, world_size=world_size)), BatchLease) for rank in range(world_size)]


@given(sizes, st.integers(1, 9))
def test_every_row_is_dealt_exactly_once(lengths: list[int], world_size: int) -> None:
    rows = [sample(0, index, tokens=tokens) for index, tokens in enumerate(lengths)]
    hands = deal(rows, world_size=world_size)
    assert sorted(place for hand in hands for place in hand) == list(range(len(rows)))
    assert max(map(len, hands)) - min(map(len, hands)) <= 1
    backwards = deal(list(reversed(rows)), world_size=world_size)
    assert [{len(rows) - 1 - place for place in hand} for hand in backwards] == list(map(set, hands)), (
        "order of arrival"
    )


@given(sizes, st.integers(1, 9))
def test_ranks_get_nearly_the_same_number_of_tokens(lengths: list[int], world_size: int) -> None:
    rows = [sample(0, index, tokens=tokens) for index, tokens in enumerate(lengths)]
    totals = [sum(rows[place].tokens for place in hand) for hand in deal(rows, world_size=world_size)]
    assert max(totals) - min(totals) <= max(lengths) + 5  # a prompt has five


@given(st.lists(st.integers(1, 50), min_size=4, max_size=32), st.integers(1, 5))
def test_leases_carry_whole_groups_and_the_same_totals(lengths: list[int], world_size: int) -> None:
    samples = [sample(i // 4, i % 4, tokens=tokens, reward=float(i)) for i, tokens in enumerate(lengths)]
    groups = [group(task, samples[task * 4 : task * 4 + 4]) for task in range((len(samples) + 3) // 4)]
    leases = leased(groups, world_size=world_size)
    assert sorted(one.trajectory_id for part in leases for one in part.samples) == sorted(
        one.trajectory_id for one in samples
    )
    for part in leases:
        assert part.totals == leases[0].totals
        for one in part.samples:
            rewards = part.groups[one.group].rewards
            assert len(rewards) == len(groups[int(part.groups[one.group].group_id[1:].split(".")[0])].samples)
            assert one.reward == rewards[one.group_index]
        assert encode(part), "what was put together from pieces is what the wire accepts"
    assert leases[0].totals is not None
    assert leases[0].totals.samples == len(samples)
    assert leases[0].totals.trained_tokens == sum(lengths)
    assert leases == leased(groups, world_size=world_size)


def test_every_rank_is_told_where_the_columns_of_its_groups_lie() -> None:
    columns = (ColumnReference(stage="reference", sequence=7), ColumnReference(stage="values", sequence=9))
    first, second = (group(task, [sample(task, index) for index in range(4)]) for task in range(2))
    portion = allotments([msgspec.structs.replace(first, columns=columns), second])
    terms = LeaseTerms(totals=step_totals(portion), stream="S", issued_at=1.0, expires_at=6.0, columns_stream="COLUMNS")
    dealt = DealtPortion(portion, terms, world_size=2)
    for rank in range(2):
        lease = decode(dealt.lease(asking(rank=rank, world_size=2)), BatchLease)
        assert lease.columns_stream == "COLUMNS"
        assert {one.group_id: one.columns for one in lease.groups} == {"t0.solver": columns, "t1.solver": ()}
        assert encode(lease)


class Desk:
    """Dealt leases with a clock, and a count of how often something was dealt."""

    def __init__(self, **bounds: Any) -> None:
        self.now = 1000.0
        self.deals = 0
        self._leases = DealtLeases(stream="S", clock=lambda: self.now, **bounds)
        self.forget = self._leases.forget

    def ask(self, portion: list[Allotment], *, rank: int = 0, world_size: int = 2, step: int = 4) -> BatchLease:
        def totals() -> StepTotals:
            self.deals += 1
            return step_totals(portion)

        request = asking(rank=rank, world_size=world_size, step=step)
        return decode(self._leases.answer(request, portion, totals=totals), BatchLease)


def portion_of(*tasks: int) -> list[Allotment]:
    return allotments([group(task, [sample(task, index, tokens=3 + index) for index in range(4)]) for task in tasks])


def test_a_portion_is_dealt_once_however_many_ranks_ask_and_however_often() -> None:
    desk, portion = Desk(), portion_of(0, 1, 2)
    first = [desk.ask(portion, rank=rank, world_size=3) for rank in range(3)]
    desk.now += 60.0
    assert [desk.ask(portion, rank=rank, world_size=3) for rank in range(3)] == first
    assert desk.deals == 1


def test_another_number_of_ranks_and_another_portion_of_the_books_are_dealt_anew() -> None:
    desk, portion = Desk(), portion_of(0, 1)
    assert len(desk.ask(portion, world_size=1).samples) == 8
    assert len(desk.ask(portion, world_size=2).samples) == 4
    assert len(desk.ask(portion_of(3), world_size=2).samples) == 2
    assert desk.deals == 3


def test_a_lease_is_renewed_before_it_expires_with_the_same_rows() -> None:
    desk, portion = Desk(), portion_of(0, 1)
    first = desk.ask(portion)
    desk.now += 0.9 * (first.expires_at - first.issued_at)
    again = desk.ask(portion)
    assert again.expires_at > first.expires_at
    assert msgspec.structs.replace(again, issued_at=first.issued_at, expires_at=first.expires_at) == first


def test_what_is_kept_is_bounded_and_what_was_let_go_is_the_same_when_dealt_again() -> None:
    desk = Desk(max_rows=16)
    portions = {step: portion_of(2 * step, 2 * step + 1) for step in range(4)}
    first = {step: desk.ask(portion, step=step) for step, portion in portions.items()}
    assert desk.deals == 4
    assert desk.ask(portions[3], step=3) == first[3]
    assert desk.ask(portions[2], step=2) == first[2]
    assert desk.deals == 4, "two portions of eight rows have room"
    assert desk.ask(portions[0], step=0) == first[0]
    assert desk.deals == 5


def test_durable_steps_are_let_go() -> None:
    desk = Desk()
    portions = {step: portion_of(step) for step in (3, 4)}
    for step, portion in portions.items():
        desk.ask(portion, step=step)
    desk.forget("judge", before_step=9)
    desk.forget("solver", before_step=4)
    desk.ask(portions[4], step=4)
    assert desk.deals == 2
    desk.ask(portions[3], step=3)
    assert desk.deals == 3


def test_a_portion_larger_than_the_bound_is_still_dealt_once() -> None:
    desk, portion = Desk(max_rows=1, max_sent_bytes=1), portion_of(0, 1)
    for rank in (0, 1, 0):
        desk.ask(portion, rank=rank)
    assert desk.deals == 1
