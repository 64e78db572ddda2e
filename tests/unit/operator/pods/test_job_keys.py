"""Keys of jobs that follow from what the operator holds."""

from __future__ import annotations

import pytest

from trimtab.fabric.signing import Signer
from trimtab.operator.pods.job_keys import InvalidRoot, KeyRoot, new_keys

ROOT = "a root that the operator holds, and nothing else"


def test_a_job_has_the_same_keys_wherever_they_are_derived_and_no_two_are_alike() -> None:
    here, there = KeyRoot(ROOT).keys("uid-1"), KeyRoot(ROOT).keys("uid-1")
    assert here == there
    other_job, other_root = KeyRoot(ROOT).keys("uid-2"), KeyRoot(ROOT + "!").keys("uid-1")
    texts = {text for keys in (here, other_job, other_root) for text in (keys.signing_seed, keys.ledger_key)}
    assert len(texts) == 6
    assert Signer(here.signing_seed).public_text != Signer(other_job.signing_seed).public_text


def test_without_a_root_they_are_drawn_by_lot() -> None:
    assert new_keys() != new_keys()


def test_a_root_that_can_be_guessed_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRoot, match="at least 32") as refused:
        KeyRoot("short secret")
    assert "short secret" not in str(refused.value)


def test_neither_root_nor_keys_are_shown() -> None:
    keys = KeyRoot(ROOT).keys("uid-1")
    shown = f"{KeyRoot(ROOT)!r} {keys!r}"
    assert ROOT not in shown
    assert keys.signing_seed not in shown
    assert keys.ledger_key not in shown
