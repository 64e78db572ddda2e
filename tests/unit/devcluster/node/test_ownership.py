from __future__ import annotations

from typing import Any

import pytest

from trimtab.devcluster.node.ownership import Delete, DropReferences, Keep, Owner, Verdict, blocks, verdict

PRESENT, WAITING, ABSENT = Owner.PRESENT, Owner.WAITING, Owner.ABSENT
BACKGROUND = Delete(propagation="Background")
FOREGROUND = Delete(propagation="Foreground")


def item(**metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata}


@pytest.mark.parametrize(
    ("owners", "has_dependants", "result"),
    [
        ({}, False, Keep()),
        ({"a": PRESENT}, False, Keep()),
        ({"a": ABSENT}, False, BACKGROUND),
        ({"a": ABSENT, "b": ABSENT}, True, BACKGROUND),
        ({"a": ABSENT, "b": PRESENT}, False, DropReferences(uids=frozenset({"a"}))),
        ({"a": WAITING, "b": PRESENT}, True, DropReferences(uids=frozenset({"a"}))),
        ({"a": WAITING}, False, BACKGROUND),
        ({"a": WAITING}, True, FOREGROUND),
        ({"a": ABSENT, "b": WAITING}, True, FOREGROUND),
    ],
)
def test_an_object_goes_when_all_its_owners_do(owners: dict[str, Owner], has_dependants: bool, result: Verdict) -> None:
    assert verdict(item(), owners, has_dependants=has_dependants) == result


def test_what_is_going_already_is_left_alone() -> None:
    assert verdict(item(deletionTimestamp="t"), {"a": ABSENT}, has_dependants=False) == Keep()


@pytest.mark.parametrize(("finalizer", "propagation"), [("orphan", "Orphan"), ("foregroundDeletion", "Foreground")])
def test_an_object_s_own_finalizer_says_how(finalizer: str, propagation: str) -> None:
    found = verdict(item(finalizers=[finalizer]), {"a": ABSENT}, has_dependants=False)
    assert isinstance(found, Delete)
    assert found.propagation == propagation


def test_only_those_who_say_so_are_waited_for() -> None:
    references = [{"uid": "a", "blockOwnerDeletion": True}, {"uid": "b"}]
    assert blocks(item(ownerReferences=references), owner_uid="a")
    assert not blocks(item(ownerReferences=references), owner_uid="b")
    assert not blocks(item(), owner_uid="a")
