"""What a note about a fleet keeps when more is said."""

from __future__ import annotations

import msgspec

from trimtab.fabric.bus.fleet_note import KEPT, MAX_TEXT, Decision, FleetNote, TrainerFailure

_SERVER_KEEPS = 128 << 10
"""Of metadata."""


def _decision(at: float, *, message: str = "") -> Decision:
    return Decision(at=at, before=1, after=2, reason="TrainerStarving", message=message, maintainer="Policy")


def _failure(number: int, *, at: float, trainer: str = "tiny-solver") -> TrainerFailure:
    return TrainerFailure(trainer=trainer, number=number, at=at, pod=f"{trainer}-0")


def test_what_is_said_again_stays_as_it_was_noted_first() -> None:
    first = FleetNote(wanted={"home": 1}, decisions=(_decision(10.0),), failures=(_failure(1, at=11.0),))
    again = FleetNote(wanted={"home": 2}, decisions=(_decision(10.0, message="later"),), failures=(_failure(1, at=50),))
    assert first.followed_by(again) == FleetNote(wanted={"home": 2}, decisions=first.decisions, failures=first.failures)


def test_decisions_and_failures_of_different_trainers_are_kept_beside_one_another() -> None:
    first = FleetNote(decisions=(_decision(10.0),), failures=(_failure(1, at=11.0),))
    more = FleetNote(
        decisions=(_decision(20.0),), failures=(_failure(2, at=21.0), _failure(1, at=22.0, trainer="tiny-judge"))
    )
    both = first.followed_by(more)
    assert [one.at for one in both.decisions] == [10.0, 20.0]
    assert [(one.trainer, one.number) for one in both.failures] == [
        ("tiny-solver", 1),
        ("tiny-solver", 2),
        ("tiny-judge", 1),
    ]


def test_the_oldest_give_way() -> None:
    note = FleetNote()
    for number in range(1, 3 * KEPT):
        said = FleetNote(decisions=(_decision(float(number)),), failures=(_failure(number, at=float(number)),))
        note = note.followed_by(said)
    newest = [float(number) for number in range(2 * KEPT, 3 * KEPT)]
    assert [one.at for one in note.decisions] == newest
    assert [one.at for one in note.failures] == newest


def test_a_server_takes_the_longest() -> None:
    worst, name = "\x01" * MAX_TEXT, "n" * 253
    note = FleetNote(
        wanted={f"{number:063}": 10**9 for number in range(256)},
        decisions=tuple(
            Decision(at=float(at), before=1, after=2, reason="R" * 128, message=worst, maintainer="Policy")
            for at in range(KEPT)
        ),
        failures=tuple(
            TrainerFailure(trainer=name, number=number, at=0.0, pod=name, why=worst) for number in range(KEPT)
        ),
    )
    assert len(msgspec.json.encode(note)) < _SERVER_KEEPS - 4096, "beside what is noted of how it was declared"
    assert msgspec.json.decode(msgspec.json.encode(note), type=FleetNote) == note
