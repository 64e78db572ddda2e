"""Own writes are seen at once, and give way to what the watch says."""

from __future__ import annotations

from typing import Any

from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import PODS, Key
from trimtab.operator.reconcile.cache import ObjectCache

_KEY = Key("here", "p")


class _Watched(Reflector):
    """A Reflector whose watch is the test."""

    def __init__(self) -> None:
        super().__init__(None, PODS)  # type: ignore[arg-type]  # nothing is asked of the server

    def says(self, item: dict[str, Any] | None, *, at: int | None = None) -> None:
        self._put(_KEY, item)
        self._version = None if at is None else str(at)


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _pod(version: int, *, uid: str = "one", colour: str = "red") -> dict[str, Any]:
    metadata = {"namespace": "here", "name": "p", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "colour": colour}


def _made() -> tuple[_Watched, ObjectCache, _Clock]:
    watched, clock = _Watched(), _Clock()
    return watched, ObjectCache(PODS, {None: watched}, index=lambda item: (item["colour"],), clock=clock), clock


def test_what_was_written_is_seen_before_the_watch_brings_it() -> None:
    watched, cache, _ = _made()
    cache.note(_pod(5))
    assert cache.get(_KEY) == _pod(5)
    assert cache.under("red") == [_pod(5)]
    watched.says(_pod(6, colour="blue"))
    assert cache.get(_KEY) == _pod(6, colour="blue")
    assert cache.under("red") == []
    assert cache.under("blue") == [_pod(6, colour="blue")]


def test_an_older_version_does_not_hide_a_newer_write() -> None:
    watched, cache, _ = _made()
    watched.says(_pod(3))
    cache.note(_pod(5, colour="blue"))
    watched.says(_pod(4))
    assert cache.get(_KEY) == _pod(5, colour="blue")


def test_a_write_that_the_watch_has_overtaken_is_not_noted() -> None:
    watched, cache, _ = _made()
    watched.says(_pod(7))
    cache.note(_pod(5, colour="blue"))
    assert cache.get(_KEY) == _pod(7)


def test_what_was_made_and_deleted_before_its_answer_was_read_is_not_noted() -> None:
    watched, cache, _ = _made()
    watched.says(_pod(5), at=5)
    watched.says(None, at=6)
    cache.note(_pod(5))
    assert cache.get(_KEY) is None
    cache.note(_pod(7, uid="two"))
    assert cache.get(_KEY) == _pod(7, uid="two")


def test_what_was_deleted_is_gone_at_once_and_its_successor_is_not() -> None:
    watched, cache, _ = _made()
    watched.says(_pod(3))
    cache.note_gone(_pod(3))
    assert cache.get(_KEY) is None
    cache.note(_pod(8, uid="two"))
    watched.says(None)
    assert cache.get(_KEY) == _pod(8, uid="two")
    watched.says(_pod(8, uid="two"))
    watched.says(None)
    assert cache.get(_KEY) is None


def test_a_note_that_the_watch_never_confirms_is_dropped() -> None:
    watched, cache, clock = _made()
    watched.says(_pod(3))
    cache.note_gone(_pod(3))
    clock.now = 31.0
    assert cache.get(_KEY) == _pod(3)


def test_what_was_made_and_taken_back_is_never_seen_again() -> None:
    watched, cache, _ = _made()
    cache.note(_pod(5))
    cache.note_gone(_pod(5))
    assert cache.get(_KEY) is None
    watched.says(_pod(5))
    assert cache.get(_KEY) is None, "the watch is late"
    watched.says(None)
    watched.says(_pod(9, uid="another"))
    assert cache.get(_KEY) == _pod(9, uid="another")
