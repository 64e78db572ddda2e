"""From `data.filter` of the manifest to the filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from trimtab.api.data import Filter as FilterSettings
from trimtab.api.scalars import Plugin
from trimtab.dataflow.filters.chain import Chain
from trimtab.dataflow.filters.contract import Filter
from trimtab.dataflow.filters.custom import Checked
from trimtab.dataflow.filters.length import Length
from trimtab.dataflow.filters.truncated import Truncated
from trimtab.dataflow.filters.zero_advantage import ZeroAdvantage
from trimtab.fabric.pod import JobMisconfigured


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
    # Filters that take single samples out may leave one, or several with equal rewards. Whoever drops groups without
    # gradient means those as well, so the question is asked again at the end.
    return Chain([ZeroAdvantage(), *by_sample, *([ZeroAdvantage()] if by_sample else [])])


def _custom(plugin: Plugin, *, load: Callable[[Plugin], object]) -> Filter:
    custom = load(plugin)
    if not callable(getattr(custom, "kept", None)):
        raise JobMisconfigured(
            f"data.filter.custom: {plugin.entrypoint} has no method 'kept'; "
            "trimtab.dataflow.filters.contract says what it is for"
        )
    return Checked(cast(Filter, custom), entrypoint=plugin.entrypoint)
