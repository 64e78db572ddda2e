"""From `data.mix`, `data.replay` and `data.selection` of the manifest to the selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from trimtab.api.data import Data
from trimtab.api.scalars import Plugin
from trimtab.dataflow.selection.contract import Selection
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.dataflow.selection.registry import Checked
from trimtab.dataflow.selection.replay import Replay
from trimtab.fabric.pod import JobMisconfigured

_METHODS = ("streams", "needs", "choose")


def make_selection(data: Data, *, policies: Sequence[str], load: Callable[[Plugin], object]) -> Selection:
    """The selection the manifest asks for. Raises JobMisconfigured when it cannot work.

    `load` makes the object that a plug-in names.
    """
    if data.selection is not None:
        custom = load(data.selection)
        for method in _METHODS:
            if not callable(getattr(custom, method, None)):
                raise JobMisconfigured(
                    f"data.selection: {data.selection.entrypoint} has no method {method!r}; "
                    "trimtab.dataflow.selection.contract says what each is for"
                )
        return Checked(cast(Selection, custom), entrypoint=data.selection.entrypoint, policies=policies)
    mixed = {mix.policy: {stream.policy: stream.weight for stream in mix.streams} for mix in data.mix}
    fresh = Fresh({policy: mixed.get(policy, {policy: 1.0}) for policy in policies}, seed=data.seed)
    return fresh if data.replay is None else Replay(data.replay, fresh)
