"""The table of the living."""

from __future__ import annotations

from trimtab.fabric.bus.keyvalue import Entry
from trimtab.fabric.bus.kv_watch import Removed
from trimtab.fabric.members import MemberTable
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State


def entry(name: str, revision: int = 1, state: State = State.READY) -> Entry:
    heartbeat = MemberHeartbeat(member_id=name, job="job", role=Role.DATAFLOW, state=state, started_at=1.0, sent_at=2.0)
    return Entry(key=name, value=encode(heartbeat), revision=revision)


def test_members_come_and_go() -> None:
    table = MemberTable(ttl_s=10.0, clock=lambda: 0.0)
    table.note(entry("b"))
    table.note(entry("a"))
    assert [member.member_id for member in table.present] == ["a", "b"]
    table.note(Removed(key="a", revision=2))
    table.note(Removed(key="never-seen", revision=3))
    assert [member.member_id for member in table.present] == ["b"]


def test_an_unreadable_heartbeat_changes_nothing() -> None:
    table = MemberTable(ttl_s=10.0, clock=lambda: 0.0)
    table.note(entry("a"))
    table.note(Entry(key="a", value=b"nonsense", revision=2))
    assert [member.member_id for member in table.present] == ["a"]


def test_a_member_that_is_not_heard_any_more_ages_out() -> None:
    now = 0.0
    table = MemberTable(ttl_s=10.0, clock=lambda: now)
    table.note(entry("a"))
    now = 15.0
    assert len(table.present) == 1
    table.note(entry("b"))
    now = 15.1
    assert [member.member_id for member in table.present] == ["b"]


def test_the_time_in_which_a_member_was_ready_is_measured() -> None:
    now = 0.0
    table = MemberTable(ttl_s=10.0, clock=lambda: now)
    table.note(entry("a", state=State.STARTING))
    now = 3.0
    table.note(entry("a"))
    table.note(entry("b"))
    now = 7.0
    table.note(entry("a", state=State.PAUSED))
    assert table.ready_seconds() == {"a": 4.0, "b": 4.0}
    now = 17.0
    assert table.ready_seconds() == {"a": 4.0, "b": 10.0}, "a heartbeat speaks for no longer than its key would last"
    table.note(Removed(key="b", revision=2))
    table.note(entry("b"))
    assert table.ready_seconds()["b"] == 0.0
