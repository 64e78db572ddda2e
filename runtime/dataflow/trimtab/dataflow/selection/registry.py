"""From `data.mix`, `data.replay` and `data.selection` of the manifest to the selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from trimtab.api.data import Data
from trimtab.api.scalars import Plugin
from trimtab.dataflow.selection.contract import Choice, Offer, Selection
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.dataflow.selection.replay import Replay
from trimtab.fabric.pod import JobMisconfigured

_METHODS = ("streams", "needs", "choose")
Result = TypeVar("Result")


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
        return CheckedSelection(cast(Selection, custom), entrypoint=data.selection.entrypoint, policies=policies)
    mixed = {mix.policy: {stream.policy: stream.weight for stream in mix.streams} for mix in data.mix}
    fresh = Fresh({policy: mixed.get(policy, {policy: 1.0}) for policy in policies}, seed=data.seed)
    return fresh if data.replay is None else Replay(data.replay, fresh)


class SelectionMisbehaved(JobMisconfigured):
    """A selection of the user's raised, or chose what was not on offer; the message names it."""


class CheckedSelection:
    """Stands between a user's selection and the ledger, which trusts what a selection says: it asks the selection and
    checks its answers. `entrypoint` is what messages call it.
    """

    def __init__(self, inner: Selection, *, entrypoint: str, policies: Sequence[str]) -> None:
        self._inner = inner
        self._entrypoint = entrypoint
        self._policies = frozenset(policies)
        self._streams: dict[str, Sequence[str]] = {}
        """What was answered first: the books are made for it."""

    def streams(self, policy: str) -> Sequence[str]:
        if policy not in self._streams:
            self._streams[policy] = self._streams_of(policy)
        return self._streams[policy]

    def _streams_of(self, policy: str) -> Sequence[str]:
        streams = self._asked("streams", lambda: tuple(map(str, self._inner.streams(policy))))
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
        answer = self._asked("choose", lambda: self._inner.choose(offer))
        if answer is None:
            return None
        if not isinstance(answer, Choice):
            raise self._misbehaved("choose", f"answered {answer!r:.80}; return a Choice or None")
        choice = self._asked("choose", lambda: _plain(answer))
        used = {one.group_id: one.last_step for one in offer.used()}
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
        if len(set(choice.retired)) != len(choice.retired):
            raise self._misbehaved("choose", "named a group in `retired` twice")
        for name, group_ids, known in (
            ("fresh", choice.fresh, waiting),
            ("replayed", choice.replayed, {group_id for group_id, step in used.items() if step < offer.step}),
            ("retired", choice.retired, used.keys()),
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


def _plain(choice: Choice) -> Choice:
    """Whatever was given as a sequence of ids, read once: what is checked is what is recorded."""
    return Choice(
        fresh=tuple(map(str, choice.fresh)),
        replayed=tuple(map(str, choice.replayed)),
        keep=bool(choice.keep),
        retired=tuple(map(str, choice.retired)),
    )
