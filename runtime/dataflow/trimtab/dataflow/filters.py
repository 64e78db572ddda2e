"""Filters choose trajectories after rollout: the contract, the built-in ones, and the chain that `data.filter` of the
manifest asks for. Write your own as a class with the method of `Filter` and name it in `data.filter.custom`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol, cast

from trimtab.api.data import Filter as FilterSettings
from trimtab.api.data import LengthFilter
from trimtab.api.scalars import Plugin
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.pod import JobMisconfigured

Part = int | tuple[int, int]
"""An episode with all its rows by its index, or a single row by the index of its episode and its part."""


class Filter(Protocol):
    """A pure function of the group: it is asked once, and what it said is recorded."""

    def kept(self, group: GroupOutcome) -> AbstractSet[Part]:
        """What to keep. Without anything the group is left out, and its prompt's place goes to another."""


class ZeroAdvantage:
    """Dynamic sampling (DAPO): leaves out groups whose rewards are all equal, because their advantages are all zero. It
    keeps a group whole or not at all. A single episode has nothing to be compared with, so it is left out too.
    """

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        if group.is_zero_variance:
            return frozenset()
        return frozenset(episode.index for episode in group.episodes)


class Truncated:
    """Leaves out episodes cut at maxTokens in any of their rows: their reward is for the limit, not for what they said.
    An episode that used up its turns had its say in each of them and stays.
    """

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        return frozenset(episode.index for episode in group.episodes if not episode.truncated)


class Length:
    """Keeps episodes whose number of trained tokens, in all their rows, is within the limits, both of them included."""

    def __init__(self, settings: LengthFilter) -> None:
        self._min_tokens = settings.min_tokens
        self._max_tokens = settings.max_tokens

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        return frozenset(episode.index for episode in group.episodes if self._fits(episode.trained_tokens))

    def _fits(self, tokens: int) -> bool:
        return self._min_tokens <= tokens and (self._max_tokens is None or tokens <= self._max_tokens)


class Chain:
    """Several filters, one after the other. Each sees only what those before it kept, and none is asked about an empty
    group. Without filters everything is kept.
    """

    def __init__(self, filters: Sequence[Filter]) -> None:
        self._filters = tuple(filters)

    def kept(self, group: GroupOutcome) -> frozenset[tuple[int, int]]:
        for one in self._filters:
            if not group.rows:
                break
            kept = one.kept(group)
            rows = tuple(row for row in group.rows if row.index in kept or (row.index, row.part) in kept)
            group = replace(group, rows=rows)
        return frozenset((row.index, row.part) for row in group.rows)


class FilterMisbehaved(JobMisconfigured):
    """A filter of the user's raised, or did not answer with what is in the group; the message names it."""


class CheckedFilter:
    """Stands between a user's filter and the ledger, which trusts what a filter says: it asks the filter and checks its
    answer. `entrypoint` is what messages call it.
    """

    def __init__(self, inner: Filter, *, entrypoint: str) -> None:
        self._inner = inner
        self._entrypoint = entrypoint

    def kept(self, group: GroupOutcome) -> frozenset[Part]:
        where = f"data.filter.custom: {self._entrypoint} on prompt {group.prompt_id!r} of policy {group.policy!r}"
        # Code of the user's: whatever it raises is about this group, and says so.
        try:
            answer: object = self._inner.kept(group)
        except Exception as error:
            raise FilterMisbehaved(f"{where} raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, frozenset | set):
            raise FilterMisbehaved(
                f"{where} answered {answer!r:.60}; return a frozenset of indices of episodes, "
                "or of pairs of index and part for single rows"
            )
        known: set[object] = {row.index for row in group.rows} | {(row.index, row.part) for row in group.rows}
        if strangers := answer - known:
            raise FilterMisbehaved(
                f"{where} kept {sorted(strangers, key=repr)[:5]}, which the group does not have; "
                f"it was given episodes {[episode.index for episode in group.episodes]}"
            )
        return frozenset(answer)


def make_filter(settings: FilterSettings, *, load: Callable[[Plugin], object]) -> Chain:
    """The filters the manifest asks for, in the order of its fields. Raises JobMisconfigured when one cannot work.

    `load` makes the object that a plug-in names.
    """
    by_episode: list[Filter] = []
    if settings.truncated == "Drop":
        by_episode.append(Truncated())
    if settings.length is not None:
        by_episode.append(Length(settings.length))
    if settings.custom is not None:
        by_episode.append(_custom(settings.custom, load=load))
    if settings.zero_advantage == "Keep":
        return Chain(by_episode)
    # Filters that take single episodes out may leave one, or several with equal rewards. Those groups have no gradient
    # either, so the question is asked again at the end.
    return Chain([ZeroAdvantage(), *by_episode, *([ZeroAdvantage()] if by_episode else [])])


def _custom(plugin: Plugin, *, load: Callable[[Plugin], object]) -> Filter:
    custom = load(plugin)
    if not callable(getattr(custom, "kept", None)):
        raise JobMisconfigured(
            f"data.filter.custom: {plugin.entrypoint} has no method 'kept'; "
            "trimtab.dataflow.filters says what it is for"
        )
    return CheckedFilter(cast(Filter, custom), entrypoint=plugin.entrypoint)
