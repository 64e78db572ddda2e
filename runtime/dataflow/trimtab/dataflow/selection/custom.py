"""Stands between a selection of the user's and the ledger, which trusts what a selection says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from trimtab.dataflow.selection.contract import Choice, Offer, Selection
from trimtab.fabric.pod import JobMisconfigured

Result = TypeVar("Result")


class SelectionMisbehaved(JobMisconfigured):
    """A selection of the user's raised, or chose what was not on offer; the message names it."""


class Checked:
    """Asks another selection and checks its answers. `entrypoint` is what messages call it."""

    def __init__(self, inner: Selection, *, entrypoint: str, policies: Sequence[str]) -> None:
        self._inner = inner
        self._entrypoint = entrypoint
        self._policies = frozenset(policies)

    def streams(self, policy: str) -> Sequence[str]:
        streams = self._asked("streams", lambda: tuple(self._inner.streams(policy)))
        if not streams or len(set(streams)) != len(streams) or not self._policies.issuperset(streams):
            raise self._misbehaved(
                "streams", f"answered {streams!r:.80} for {policy!r}; name policies of this job, each once"
            )
        return streams

    def needs(self, offer: Offer, *, steps: int) -> Mapping[str, int]:
        needs = self._asked("needs", lambda: dict(self._inner.needs(offer, steps=steps)))
        for stream, count in needs.items():
            if stream not in self._policies or not isinstance(count, int):
                raise self._misbehaved("needs", f"answered {needs!r:.80}; return whole numbers by policy")
        return needs

    def choose(self, offer: Offer) -> Choice | None:
        choice = self._asked("choose", lambda: self._inner.choose(offer))
        if choice is None:
            return None
        if not isinstance(choice, Choice):
            raise self._misbehaved("choose", f"answered {choice!r:.80}; return a Choice or None")
        used = {one.group_id for one in offer.used()}
        waiting = {
            group_id
            for stream in self.streams(offer.policy)
            for group_id in offer.earliest(stream, offer.waiting(stream))
        }
        chosen = (*choice.fresh, *choice.replayed)
        if len(chosen) != offer.places or len(set(chosen)) != len(chosen):
            raise self._misbehaved(
                "choose", f"chose {len(chosen)} groups, {len(set(chosen))} of them different, for {offer.places} places"
            )
        for name, group_ids, known in (
            ("fresh", choice.fresh, waiting),
            ("replayed", choice.replayed, used),
            ("retired", choice.retired, used),
        ):
            if strangers := set(group_ids) - known:
                raise self._misbehaved(
                    "choose", f"named groups in `{name}` that were not on offer: {sorted(strangers)[:5]}"
                )
        return choice

    def _asked(self, method: str, call: Callable[[], Result]) -> Result:
        # Code of the user's: whatever it raises is about the manifest, and says so.
        try:
            return call()
        except Exception as error:
            raise self._misbehaved(method, f"raised {type(error).__name__}: {error}") from error

    def _misbehaved(self, method: str, what: str) -> SelectionMisbehaved:
        return SelectionMisbehaved(f"data.selection: {self._entrypoint}.{method} {what}")
