"""Filters choose trajectories after rollout: the contract, the built-in ones, and the chain that `data.filter` of the
manifest asks for. Write your own as a class with the method of `Filter` and name it in `data.filter.custom`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, cast

from trimtab.api.data import Filter as FilterSettings
from trimtab.api.data import LengthFilter
from trimtab.api.scalars import Plugin
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.trajectory import Finish


class Filter(Protocol):
    """A pure function of the group: it is asked once, and what it said is recorded."""

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        """Indices of the samples to keep. Without any the group is left out, and its prompt's place goes to another."""


class ZeroAdvantage:
    """Dynamic sampling (DAPO): leaves out groups whose rewards are all equal, because their advantages are all zero. It
    keeps a group whole or not at all. A single sample has nothing to be compared with, so it is left out too.
    """

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        if group.is_zero_variance:
            return frozenset()
        return frozenset(sample.index for sample in group.samples)


class Truncated:
    """Leaves out samples cut at maxTokens: their reward is for the limit, not for what they said. A sample that used up
    its turns had its say in each of them and stays.
    """

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        return frozenset(sample.index for sample in group.samples if sample.finish is not Finish.LENGTH)


class Length:
    """Keeps samples whose number of trained tokens is within the limits, both of them included."""

    def __init__(self, settings: LengthFilter) -> None:
        self._min_tokens = settings.min_tokens
        self._max_tokens = settings.max_tokens

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        return frozenset(sample.index for sample in group.samples if self._fits(sample.trained_tokens))

    def _fits(self, tokens: int) -> bool:
        return self._min_tokens <= tokens and (self._max_tokens is None or tokens <= self._max_tokens)


class Chain:
    """Several filters, one after the other. Each sees only what those before it kept, and none is asked about an empty
    group. Without filters everything is kept.
    """

    def __init__(self, filters: Sequence[Filter]) -> None:
        self._filters = tuple(filters)

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        for one in self._filters:
            if not group.samples:
                break
            kept = one.kept(group)
            group = replace(group, samples=tuple(sample for sample in group.samples if sample.index in kept))
        return frozenset(sample.index for sample in group.samples)


class FilterMisbehaved(JobMisconfigured):
    """A filter of the user's raised, or did not answer with samples of the group; the message names it."""


class CheckedFilter:
    """Stands between a user's filter and the ledger, which trusts what a filter says: it asks the filter and checks its
    answer. `entrypoint` is what messages call it.
    """

    def __init__(self, inner: Filter, *, entrypoint: str) -> None:
        self._inner = inner
        self._entrypoint = entrypoint

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        where = f"data.filter.custom: {self._entrypoint} on prompt {group.prompt_id!r} of policy {group.policy!r}"
        # Code of the user's: whatever it raises is about this group, and says so.
        try:
            answer: object = self._inner.kept(group)
        except Exception as error:
            raise FilterMisbehaved(f"{where} raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, frozenset | set):
            raise FilterMisbehaved(f"{where} answered {answer!r:.60}; return a frozenset of sample indices")
        known = {sample.index for sample in group.samples}
        if strangers := answer - known:
            raise FilterMisbehaved(
                f"{where} kept samples {sorted(strangers, key=repr)}, which the group does not have; "
                f"it was given {sorted(known)}"
            )
        return frozenset(answer)


def make_filter(settings: FilterSettings, *, load: Callable[[Plugin], object]) -> Filter:
    """The filters the manifest asks for, in the order of its fields. Raises JobMisconfigured when one cannot work.

    `load` makes the object that a plug-in names.
    """
    by_sample: list[Filter] = []
    if settings.truncated == "Drop":
        by_sample.append(Truncated())
    if settings.length is not None:
        by_sample.append(Length(settings.length))
    if settings.custom is not None:
        by_sample.append(_custom(settings.custom, load=load))
    if settings.zero_advantage == "Keep":
        return Chain(by_sample)
    # Filters that take single samples out may leave one, or several with equal rewards. Those groups have no gradient
    # either, so the question is asked again at the end.
    return Chain([ZeroAdvantage(), *by_sample, *([ZeroAdvantage()] if by_sample else [])])


def _custom(plugin: Plugin, *, load: Callable[[Plugin], object]) -> Filter:
    custom = load(plugin)
    if not callable(getattr(custom, "kept", None)):
        raise JobMisconfigured(
            f"data.filter.custom: {plugin.entrypoint} has no method 'kept'; "
            "trimtab.dataflow.filters says what it is for"
        )
    return CheckedFilter(cast(Filter, custom), entrypoint=plugin.entrypoint)
