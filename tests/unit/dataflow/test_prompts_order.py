"""The order of prompts: shuffled, mixed by weight, epoch after epoch, and a function of seed and position alone."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trimtab.dataflow.mixing import SLOTS, MixingSchedule
from trimtab.dataflow.prompts.order import MixedSource, Permutation, PromptOrder
from trimtab.dataflow.prompts.prompt import Prompt, PromptSourceError

_WEIGHTS = st.lists(st.floats(min_value=1e-9, max_value=1e9), min_size=1, max_size=32)


class Numbered:
    """Rows that are their numbers."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def read(self, start: int, stop: int) -> list[Prompt]:
        assert start >= 0
        assert self.length is None or stop <= self.length
        return [Prompt(str(number), {}) for number in range(start, stop)]


def mixed(**lengths: int | None) -> list[MixedSource]:
    return [MixedSource(name=name, weight=1.0, rows=Numbered(length)) for name, length in lengths.items()]


@given(st.integers(1, 3000), st.text())
@example(1, "")
@example(64, "")
@example(65, "")
@example(4097, "")
def test_every_size_and_key_gives_a_permutation(size: int, key: str) -> None:
    permutation = Permutation(size, key=key)
    assert sorted(permutation.at(position) for position in range(size)) == list(range(size))


def test_the_permutation_is_the_same_on_every_machine() -> None:
    permutation = Permutation(10**12, key="7/train/0")
    assert [permutation.at(position) for position in (0, 1, 10**12 - 1)] == [
        393798912367,
        367981509349,
        810580229563,
    ]


def test_outside_of_its_size_a_permutation_has_nothing() -> None:
    for position in (-1, 3):
        with pytest.raises(IndexError):
            Permutation(3, key="").at(position)


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_all_orders_of_a_few_elements_are_equally_likely(size: int) -> None:
    seen = Counter(tuple(Permutation(size, key=str(key)).at(n) for n in range(size)) for key in range(3000))
    orders = list(itertools.permutations(range(size)))
    _assert_uniform(np.array([seen[order] for order in orders]), degrees=len(orders) - 1)


@pytest.mark.parametrize("size", [10, *(pytest.param(size, marks=pytest.mark.slow) for size in (64, 100))])
def test_every_element_comes_at_every_position_equally_often(size: int) -> None:
    counts = np.zeros((size, size))
    for key in range(20 * size):
        permutation = Permutation(size, key=str(key))
        for position in range(size):
            counts[position, permutation.at(position)] += 1
    _assert_uniform(counts.ravel(), degrees=(size - 1) ** 2)


def test_neighbours_in_a_large_order_are_unrelated() -> None:
    size = 1_000_003
    permutation = Permutation(size, key="x")
    values = np.array([permutation.at(position) for position in range(20_000)])
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / math.sqrt(len(values))
    _assert_uniform(np.bincount(values * 100 // size, minlength=100), degrees=99)


def _assert_uniform(counts: np.ndarray, *, degrees: int) -> None:
    expected = counts.sum() / len(counts)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # Five deviations of the distribution that uniform counts would give.
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees), chi_square


@given(_WEIGHTS, st.integers(0, 2**31 - 1))
@example([1e9, 1e-9, 1e-9], 0)
@example([1.0] * 32, 1)
def test_over_any_prefix_every_source_is_less_than_a_prompt_off_its_share(weights: list[float], seed: int) -> None:
    schedule = MixingSchedule({f"s{number}": weight for number, weight in enumerate(weights)}, seed=seed)
    assert min(schedule.shares) >= 1
    assert schedule.period == (SLOTS if len(weights) > 1 else 1)
    counts = [0] * len(weights)
    for position in range(schedule.period):
        source, before = schedule.at(position)
        assert before == counts[source]
        counts[source] += 1
        assert schedule.reaching(source, counts[source]) == position + 1
        for number, share in enumerate(schedule.shares):
            assert abs(counts[number] * schedule.period - share * (position + 1)) < schedule.period
    assert counts == schedule.shares


@given(_WEIGHTS)
def test_shares_are_the_weights_rounded_to_slots(weights: list[float]) -> None:
    schedule = MixingSchedule({f"s{number}": weight for number, weight in enumerate(weights)}, seed=0)
    total = sum(Fraction(weight) for weight in weights)
    ideal = [Fraction(weight) * schedule.period / total for weight in weights]
    if min(ideal) >= 1:
        assert all(abs(share - exact) < 1 for share, exact in zip(schedule.shares, ideal, strict=True))
    else:
        # Slots given to sources that would have none are taken from the others, in proportion.
        assert all(share <= 1 or share <= exact + 1 for share, exact in zip(schedule.shares, ideal, strict=True))


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 10), min_size=1), st.integers(0, 10**9))
def test_counts_go_on_over_cycles(weights: dict[str, float], position: int) -> None:
    schedule = MixingSchedule(weights, seed=3)
    cycle, slot = divmod(position, schedule.period)
    source, before = schedule.at(position)
    assert (source, before - cycle * schedule.shares[source]) == schedule.at(slot)
    assert schedule.reaching(source, before + 1) == position + 1


def test_the_seed_decides_between_sources_that_are_due_at_once() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 1.0}
    first = {MixingSchedule(weights, seed=seed).at(0)[0] for seed in range(20)}
    assert first == {0, 1, 2}
    # The order in the manifest does not matter.
    turned = MixingSchedule({"c": 1.0, "a": 1.0, "b": 1.0}, seed=4)
    straight = MixingSchedule({"a": 1.0, "b": 1.0, "c": 1.0}, seed=4)
    names = [("c", "a", "b")[turned.at(n)[0]] for n in range(3)]
    assert names == [("a", "b", "c")[straight.at(n)[0]] for n in range(3)]


@given(st.integers(1, 20), st.integers(0, 2**31 - 1), st.booleans())
def test_each_epoch_has_every_prompt_once_in_an_order_that_only_the_seed_decides(
    count: int, seed: int, shuffle: bool
) -> None:
    order = PromptOrder(mixed(train=count), seed=seed, shuffle=shuffle)
    run = [order.at(position).prompt_id for position in range(3 * count)]
    expected = [str(number) for number in range(count)]
    for epoch in range(3):
        assert sorted(run[epoch * count : (epoch + 1) * count]) == sorted(expected)
    if not shuffle:
        assert run == expected * 3
    again = PromptOrder(mixed(train=count), seed=seed, shuffle=shuffle)
    assert [again.at(position).prompt_id for position in reversed(range(3 * count))] == run[::-1]


def test_epochs_seeds_and_sources_are_shuffled_differently() -> None:
    def epoch(number: int, *, seed: int = 0, name: str = "train") -> tuple[str, ...]:
        order = PromptOrder(mixed(**{name: 50}), seed=seed, shuffle=True)
        return tuple(order.at(position).prompt_id for position in range(50 * number, 50 * (number + 1)))

    orders = {epoch(0), epoch(1), epoch(2), epoch(0, seed=1), epoch(0, name="other")}
    assert len(orders) == 5
    assert epoch(0) == epoch(0)


def test_kept_rows_are_all_that_there_is() -> None:
    source = MixedSource(name="train", weight=1.0, rows=Numbered(10), kept=np.array([1, 4, 9]), skipped=7)
    order = PromptOrder([source], seed=0, shuffle=True, epochs=2)
    assert (order.total, order.skipped) == (6, 7)
    assert sorted(order.at(position).prompt_id for position in range(3)) == ["1", "4", "9"]


def test_all_prompts_in_play_can_be_listed_unless_there_is_no_end() -> None:
    kept = np.array([row for row in range(1000) if row != 500])
    sources = [MixedSource(name="some", weight=1.0, rows=Numbered(1000), kept=kept, skipped=1), *mixed(all=300)]
    listed = PromptOrder(sources, seed=0, shuffle=True).every()
    assert listed is not None
    assert [name for name, _ in listed] == [*map(str, kept), *map(str, range(300))]
    assert PromptOrder(mixed(files=3, made=None), seed=0, shuffle=True).every() is None


def test_a_generator_without_end_is_neither_shuffled_nor_repeated() -> None:
    order = PromptOrder(mixed(files=3, made=None), seed=0, shuffle=True)
    schedule = MixingSchedule({"files": 1.0, "made": 1.0}, seed=0)
    made = [order.at(position).prompt_id for position in range(40) if schedule.at(position)[0] == 1]
    assert made == [str(number) for number in range(20)]


@given(
    st.lists(st.tuples(st.integers(1, 40) | st.none(), st.floats(0.05, 20)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 100),
)
def test_the_run_ends_with_the_prompt_that_completes_the_last_epoch(
    shapes: list[tuple[int | None, float]], epochs: int, seed: int
) -> None:
    sources = [
        MixedSource(name=f"s{number}", weight=weight, rows=Numbered(length))
        for number, (length, weight) in enumerate(shapes)
    ]
    if all(source.length is None for source in sources):
        with pytest.raises(PromptSourceError, match="data.epochs: no source has an end"):
            PromptOrder(sources, seed=seed, shuffle=True, epochs=epochs)
        return
    order = PromptOrder(sources, seed=seed, shuffle=True, epochs=epochs)
    schedule = MixingSchedule({source.name: source.weight for source in sources}, seed=seed)
    missing = {number: epochs * source.length for number, source in enumerate(sources) if source.length is not None}
    position = 0
    while missing:
        source, _ = schedule.at(position)
        position += 1
        if source in missing:
            missing[source] -= 1
            if missing[source] == 0:
                del missing[source]
    assert order.total == position


def test_without_epochs_there_is_no_end() -> None:
    assert PromptOrder(mixed(train=1), seed=0, shuffle=True).total is None
    assert PromptOrder(mixed(train=1), seed=0, shuffle=True, epochs=3).total == 3
