"""What a user's error says leaves the process without secrets, and never keeps a failure from being told."""

from __future__ import annotations

from trimtab.fabric.logs import REDACTOR
from trimtab.rollout.failure import OTHER_KINDS, EpisodeFailed, FailureTally


def test_secrets_are_taken_out() -> None:
    REDACTOR.register(["f00-bar-secret-value"])
    text = EpisodeFailed("workflow-error", "GET https://me:pw@host failed; token f00-bar-secret-value").text
    assert "f00-bar-secret-value" not in text
    assert "pw@" not in text
    assert "failed" in text


def test_a_secret_at_the_place_of_the_cut_does_not_survive_in_part() -> None:
    REDACTOR.register(["another-long-secret-value"])
    assert "another" not in EpisodeFailed("workflow-error", "x" * 3990 + "another-long-secret-value").text


def test_half_a_character_and_any_length_can_be_told() -> None:
    text = EpisodeFailed("workflow-error", "\udc80" + "é" * 10_000).text
    assert text.encode("utf-8")
    assert len(text) == 4000


def test_kinds_that_somebody_makes_up_do_not_grow_without_end() -> None:
    tally = FailureTally()
    counted = {tally.add(f"kind-{number}") for number in range(1000)}
    assert len(counted) == 101
    assert tally.counts[OTHER_KINDS] == 900
    assert tally.add("kind-0") == "kind-0"
