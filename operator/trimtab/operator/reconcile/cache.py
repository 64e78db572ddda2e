"""Objects of one kind as they are, with our own last writes among them even before the watch has brought them back.

The Reflector underneath is the source of truth. What we wrote is laid over it until the watch shows that version or a
newer one, so that no plan is made twice from the same stale world; after 30 seconds the note is dropped and the store
is believed again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from trimtab.kube.bounded_response import UNREADABLE
from trimtab.kube.reflector import Listener, Reflector
from trimtab.kube.resources import Key, Object, Resource, key_of
from trimtab.operator.reconcile.refusals import overlong_spec

_NOTE_S = 30.0
_MOST_PROBLEMS = 5

M = TypeVar("M", bound=BaseModel)


class Unreadable(ValueError):
    """An object that this version cannot read, such as one written for a newer one; the message names the fields."""


@dataclass(frozen=True, kw_only=True)
class _Note:
    item: Object
    gone: bool
    until: float


class ObjectCache:
    def __init__(
        self,
        resource: Resource,
        reflectors: Mapping[str | None, Reflector],
        *,
        index: Callable[[Object], Iterable[Hashable]],
        clock: Callable[[], float],
    ) -> None:
        """`reflectors` by namespace; None for all of them. `index` says under what an object is looked up."""
        self.resource = resource
        self._reflectors = reflectors
        self._index = index
        self._clock = clock
        self._notes: dict[Key, _Note] = {}
        self._places: dict[Hashable, set[Key]] = {}
        for reflector in reflectors.values():
            reflector.listen(self._seen)

    @property
    def reflectors(self) -> Sequence[Reflector]:
        return list(self._reflectors.values())

    def listen(self, listener: Listener) -> None:
        for reflector in self._reflectors.values():
            reflector.listen(listener)

    def get(self, key: Key) -> Object | None:
        reflector = self._reflectors.get(key.namespace) or self._reflectors.get(None)
        stored = None if reflector is None else reflector.get(key)
        note = self._notes.get(key)
        if note is None:
            return stored
        if note.until < self._clock():
            del self._notes[key]
            return stored
        return None if note.gone else note.item

    def __iter__(self) -> Iterator[Key]:
        for reflector in self._reflectors.values():
            yield from reflector

    def under(self, place: Hashable) -> list[Object]:
        """The objects with this index value, by name."""
        keys = self._places.get(place)
        if not keys:
            return []
        found = []
        for key in sorted(keys):
            item = self.get(key)
            if item is not None and place in self._index(item):
                found.append(item)
            else:
                keys.discard(key)
        if not keys:
            del self._places[place]
        return found

    def note(self, item: Object) -> None:
        """What the server answered to a write of ours."""
        self._remember(item, gone=False)

    def note_gone(self, item: Object) -> None:
        """It was deleted and had nothing to wait for."""
        self._remember(item, gone=True)

    def _remember(self, item: Object, *, gone: bool) -> None:
        key = key_of(item)
        reflector = self._reflectors.get(key.namespace) or self._reflectors.get(None)
        stored = None if reflector is None else reflector.get(key)
        if stored is None and gone and key not in self._notes:
            return
        if stored is None and not gone and reflector is not None and (reflector.version or 0) >= _version(item):
            return  # the watch has told of it already, and of its end
        same = stored is not None and stored["metadata"]["uid"] == item["metadata"]["uid"]
        if stored is not None and not gone and same and _version(stored) >= _version(item):
            return
        item["metadata"].pop("managedFields", None)
        self._notes[key] = _Note(item=item, gone=gone, until=self._clock() + _NOTE_S)
        self._file(key, item)

    def _file(self, key: Key, item: Object) -> None:
        for place in self._index(item):
            self._places.setdefault(place, set()).add(key)

    def _seen(self, key: Key, before: Object | None, after: Object | None) -> None:
        note = self._notes.get(key)
        if note is not None and _overtaken(note, before, after):
            del self._notes[key]
        if after is not None:
            self._file(key, after)


class TypedCache(ObjectCache, Generic[M]):
    """The same, for kinds that have a type. Reading is remembered for each version."""

    def __init__(
        self,
        resource: Resource,
        reflectors: Mapping[str | None, Reflector],
        model: type[M],
        *,
        index: Callable[[Object], Iterable[Hashable]],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(resource, reflectors, index=index, clock=clock)
        self._model = model
        self._read: dict[Key, tuple[str, str, M]] = {}
        self.listen(self._forget)

    def read(self, item: Object) -> M:
        """Raises Unreadable."""
        key, version, uid = key_of(item), item["metadata"]["resourceVersion"], item["metadata"]["uid"]
        known = self._read.get(key)
        if known is not None and known[:2] == (uid, version):
            return known[2]
        if UNREADABLE in item:
            raise Unreadable(str(item[UNREADABLE]))
        if (overlong := overlong_spec(item.get("spec"))) is not None:
            raise Unreadable(overlong)
        try:
            typed = self._model.model_validate(item)
        except ValidationError as invalid:
            problems = invalid.errors(include_url=False, include_context=False, include_input=False)
            told = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:_MOST_PROBLEMS]]
            raise Unreadable("; ".join(told)) from None
        self._read[key] = (uid, version, typed)
        return typed

    def _forget(self, key: Key, before: Object | None, after: Object | None) -> None:
        if after is None:
            self._read.pop(key, None)


def _overtaken(note: _Note, before: Object | None, after: Object | None) -> bool:
    """Whether what the watch says is what we wrote, or came later."""
    if after is None:
        return before is not None and before["metadata"]["uid"] == note.item["metadata"]["uid"]
    if note.gone and after["metadata"]["uid"] == note.item["metadata"]["uid"]:
        return False
    return _version(after) >= _version(note.item)


def _version(item: Object) -> int:
    """Versions of one kind can be compared: the API says so since 1.35, and etcd has always counted."""
    return int(item["metadata"]["resourceVersion"])
