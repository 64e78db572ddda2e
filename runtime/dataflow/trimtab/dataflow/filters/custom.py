"""Stands between a filter of the user's and the ledger, which trusts what a filter says."""

from __future__ import annotations

from trimtab.dataflow.filters.contract import Filter
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.pod import JobMisconfigured


class FilterMisbehaved(JobMisconfigured):
    """A filter of the user's raised, or did not answer with samples of the group; the message names it."""


class Checked:
    """Asks another filter and checks its answer. `entrypoint` is what messages call it."""

    def __init__(self, inner: Filter, *, entrypoint: str) -> None:
        self._inner = inner
        self._entrypoint = entrypoint

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        place = f"data.filter.custom: {self._entrypoint} on prompt {group.prompt_id!r} of policy {group.policy!r}"
        # Code of the user's: whatever it raises is about this group, and says so.
        try:
            answer: object = self._inner.kept(group)
        except Exception as error:
            raise FilterMisbehaved(f"{place} raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, frozenset | set):
            raise FilterMisbehaved(f"{place} answered {answer!r:.60}; return a frozenset of sample indices")
        known = {sample.index for sample in group.samples}
        if strangers := answer - known:
            raise FilterMisbehaved(
                f"{place} kept samples {sorted(strangers, key=repr)}, which the group does not have; "
                f"it was given {sorted(known)}"
            )
        return frozenset(answer)
