"""The radix tree of kept prefixes, against a plain record of which slot holds which prefix."""

from __future__ import annotations

import random

from trimtab.rollout.engines.builtin.prefix_cache import PrefixTree


def keep(tree: PrefixTree, slots: dict[int, tuple[int, ...]], tokens: list[int]) -> None:
    """Fill the slots as the cache does: each holds the whole prefix that ends with its token."""
    start, new = tree.insert(tokens)
    for offset, slot in enumerate(new):
        slots[slot] = tuple(tokens[: start + offset + 1])


def test_what_is_matched_is_what_was_kept_under_any_order_of_use_and_pressure() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        tree = PrefixTree(capacity=40)
        slots: dict[int, tuple[int, ...]] = {}
        for _ in range(200):
            tokens = [chance.randrange(3) for _ in range(chance.randrange(1, 15))]
            if chance.random() < 0.5:
                keep(tree, slots, tokens)
            found = tree.match(tokens)
            assert [slots[slot] for slot in found] == [tuple(tokens[: n + 1]) for n in range(len(found))]
            assert tree.kept_tokens <= 40


def test_a_sequence_that_fits_is_found_whole() -> None:
    tree = PrefixTree(capacity=100)
    keep(tree, {}, [1, 2, 3, 4])
    keep(tree, {}, [1, 2, 9])
    assert len(tree.match([1, 2, 3, 4, 5])) == 4
    assert len(tree.match([1, 2, 9, 9])) == 3
    assert tree.match([2]) == []
    assert tree.kept_tokens == 5


def test_what_was_used_longest_ago_goes_first_and_from_its_end() -> None:
    tree = PrefixTree(capacity=10)
    keep(tree, {}, [1, 1, 1, 1, 1])
    keep(tree, {}, [2, 2, 2, 2, 2])
    tree.match([1, 1, 1, 1, 1])
    keep(tree, {}, [3, 3, 3])
    assert [len(tree.match([token] * 5)) for token in (1, 2, 3)] == [5, 2, 3]


def test_a_sequence_larger_than_the_tree_keeps_its_beginning() -> None:
    tree = PrefixTree(capacity=4)
    keep(tree, {}, [5, 6])
    keep(tree, {}, [5, 6, 7, 8, 9, 10])
    assert len(tree.match([5, 6, 7, 8, 9, 10])) == 4


def test_cleared_it_is_empty() -> None:
    tree = PrefixTree(capacity=4)
    keep(tree, {}, [1, 2, 3])
    tree.clear()
    assert tree.match([1, 2, 3]) == []
    assert tree.kept_tokens == 0
