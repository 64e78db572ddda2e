"""What a pointer can say, and how entries get in and out of its catalogue."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.weights.sealed_samples import catalogue, entry, sha
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position

FULL = entry(Position(1, 1))
STEP = entry(Position(1, 2), Position(1, 1))


def test_adding_moves_to_the_newest_and_never_back() -> None:
    latest = catalogue([STEP])
    assert latest.newest == Position(1, 2)
    assert latest.adding(FULL).newest == Position(1, 2)
    assert latest.adding(FULL).catalogue == (STEP, FULL)
    assert latest.adding(STEP) == latest


def test_an_entry_replaces_the_one_between_the_same_positions() -> None:
    again = msgspec.structs.replace(STEP, manifest=sha("again"))
    assert catalogue([STEP, FULL]).adding(again).catalogue == (again, FULL)


def test_a_version_of_a_later_epoch_is_newer_whatever_its_number() -> None:
    latest = catalogue([entry(Position(1, 8)), entry(Position(2, 3), Position(1, 2))])
    assert latest.newest == Position(2, 3)


def test_a_position_is_one_state() -> None:
    with pytest.raises(ValueError, match="two different roots"):
        catalogue([STEP]).adding(msgspec.structs.replace(entry(Position(1, 2)), root=sha("other")))


def test_the_newest_cannot_be_dropped() -> None:
    latest = catalogue([FULL, STEP])
    assert latest.keeping([STEP]).catalogue == (STEP,)
    with pytest.raises(ValueError, match="the pointer says"):
        latest.keeping([FULL])


def test_an_entry_leads_forward() -> None:
    with pytest.raises(ValueError, match="back to"):
        entry(Position(1, 2), Position(1, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"newest": None},
        {"newest": {"epoch": 1, "version": 3}},
        {"epoch": 0},
        {"surprise": 1},
        {"catalogue": [msgspec.to_builtins(STEP)] * 2},
        {"catalogue": [msgspec.to_builtins(STEP) | {"base": {"epoch": 1, "version": 2}}]},
        {"catalogue": [msgspec.to_builtins(STEP) | {"manifest": "../x"}]},
    ],
    ids=str,
)
def test_a_pointer_that_contradicts_itself_is_not_read(change: dict[str, object]) -> None:
    document = msgspec.to_builtins(catalogue([STEP]))
    assert msgspec.convert(document, Latest) == catalogue([STEP])
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(document | change, Latest)
