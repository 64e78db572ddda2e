"""Dealing rows to ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.dataflow.books import allotments, group, sample
from trimtab.dataflow.leases import deal, lease, step_totals
from trimtab.dataflow.ledger.groups import Group
from trimtab.fabric.wire.lease import BatchLease, BatchRequest

sizes = st.lists(st.integers(1, 3000), min_size=1, max_size=60)


def ask(groups: list[Group], *, rank: int, world_size: int) -> BatchLease:
    request = BatchRequest(job="job", policy="solver", step=4, rank=rank, world_size=world_size)
    portion = allotments(groups)
    return lease(portion, request, totals=step_totals(portion), stream="S", now=1.0, expires_s=5.0)


@given(sizes, st.integers(1, 9))
def test_every_row_is_dealt_exactly_once(lengths: list[int], world_size: int) -> None:
    rows = [sample(0, index, tokens=tokens) for index, tokens in enumerate(lengths)]
    hands = deal(rows, world_size=world_size)
    assert sorted(row.sequence for hand in hands for row in hand) == [row.sequence for row in rows]
    assert max(map(len, hands)) - min(map(len, hands)) <= 1
    assert deal(list(reversed(rows)), world_size=world_size) == hands, "the order of arrival does not matter"


@given(sizes, st.integers(1, 9))
def test_ranks_get_nearly_the_same_number_of_tokens(lengths: list[int], world_size: int) -> None:
    hands = deal([sample(0, index, tokens=tokens) for index, tokens in enumerate(lengths)], world_size=world_size)
    totals = [sum(row.tokens for row in hand) for hand in hands]
    assert max(totals) - min(totals) <= max(lengths) + 5  # a prompt has five


@given(st.lists(st.integers(1, 50), min_size=4, max_size=32), st.integers(1, 5))
def test_leases_carry_whole_groups_and_the_same_totals(lengths: list[int], world_size: int) -> None:
    samples = [sample(i // 4, i % 4, tokens=tokens, reward=float(i)) for i, tokens in enumerate(lengths)]
    groups = [group(task, samples[task * 4 : task * 4 + 4]) for task in range((len(samples) + 3) // 4)]
    leases = [ask(groups, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert sorted(one.trajectory_id for part in leases for one in part.samples) == sorted(
        one.trajectory_id for one in samples
    )
    for part in leases:
        assert part.totals == leases[0].totals
        for one in part.samples:
            rewards = part.groups[one.group].rewards
            assert len(rewards) == len(groups[int(part.groups[one.group].group_id[1:].split(".")[0])].samples)
            assert one.reward == rewards[one.group_index]
    assert leases[0].totals is not None
    assert leases[0].totals.samples == len(samples)
    assert leases[0].totals.trained_tokens == sum(lengths)
    assert leases == [ask(groups, rank=rank, world_size=world_size) for rank in range(world_size)]
