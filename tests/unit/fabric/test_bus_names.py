"""Names, subjects and topology: pure, so tried with anything a user could type."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.fabric.bus.errors import InvalidName, TopologyMismatch
from trimtab.fabric.bus.keyvalue import checked_key
from trimtab.fabric.bus.names import (
    MAX_TOKEN_CHARS,
    SEPARATOR,
    checked_headers,
    checked_subject,
    encoded_size,
    escape_token,
)
from trimtab.fabric.bus.streams import STREAM_FIXED, differing_fields, reconciled
from trimtab.fabric.bus.topology import JobTopology

names = st.text(min_size=1, max_size=80)


@given(names)
def test_an_escaped_name_is_valid_everywhere(name: str) -> None:
    token = escape_token(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,63}", token)
    assert SEPARATOR not in token
    assert len(token) <= MAX_TOKEN_CHARS
    checked_subject(f"a.{token}.b")
    checked_key(token)


@given(names, names)
def test_different_names_stay_different(one: str, other: str) -> None:
    assert (escape_token(one) == escape_token(other)) == (one == other)


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_what_has_no_bytes_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        escape_token(name)


def test_long_names_keep_their_start_and_do_not_break_an_escape() -> None:
    token = escape_token("a" * 40 + "." * 300)
    assert token.startswith("a" * 40 + "_h")
    assert token != escape_token("a" * 40 + "." * 301)


def _stored_names(topology: JobTopology) -> set[str]:
    return {stream.name for stream in topology.streams} | {bucket.stream for bucket in topology.buckets}


@given(names, names, names, names)
def test_two_jobs_never_share_a_name(ns_a: str, job_a: str, ns_b: str, job_b: str) -> None:
    a, b = JobTopology(ns_a, job_a, stages=("s",)), JobTopology(ns_b, job_b, stages=("s",))
    same = (ns_a, job_a) == (ns_b, job_b)
    stored = _stored_names(a)
    assert len(stored) == len(a.streams) + len(a.buckets)
    assert bool(stored & _stored_names(b)) == same
    assert (a.batch_subject("p") == b.batch_subject("p")) == same
    assert all(len(name) < 200 for name in stored)


@given(names, names, names)
def test_subjects_fall_into_their_stream(namespace: str, job: str, policy: str) -> None:
    topology = JobTopology(namespace, job, stages=(policy,))
    assert checked_subject(topology.stage_subject(policy)).startswith(topology.stage_tasks.subjects[0][:-1])
    assert checked_subject(topology.column_subject(policy)).startswith(topology.columns.subjects[0][:-1])
    assert topology.stage_consumer(policy, lease_s=1.0).filter_subjects == (topology.stage_subject(policy),)
    assert checked_subject(topology.task_subject(policy)).startswith(topology.tasks.subjects[0][:-1])
    assert checked_subject(topology.trajectory_subject(policy)).startswith(topology.trajectories.subjects[0][:-1])
    assert not checked_subject(topology.batch_subject(policy, shard=3)).startswith(topology.tasks.subjects[0][:-1])


def test_the_topology_of_a_job() -> None:
    topology = JobTopology("team", "math.v2", member_ttl_s=9.0)
    assert topology.tasks.config()["name"] == "team__math_2ev2__TASKS"
    assert topology.tasks.config()["retention"] == "workqueue"
    trajectories = topology.trajectories.config()
    assert (trajectories["allow_direct"], trajectories["discard"]) == (True, "new")
    assert trajectories["duplicate_window"] == 120_000_000_000
    assert topology.members.config()["max_age"] == 9_000_000_000
    swaps = topology.swaps.config()
    assert (swaps["name"], swaps["storage"], swaps["max_age"]) == (
        "KV_team__math_2ev2__swaps",
        "memory",
        10_000_000_000,
    )
    assert topology.swap_slot_key("pool.a", "solver", slot=3) == "pool_2ea.solver.3"
    assert topology.trajectory_subject("solver") == "trimtab.team.math_2ev2.trajectories.solver"


def test_streams_of_stages_exist_in_jobs_that_have_some() -> None:
    without, some = JobTopology("team", "math"), JobTopology("team", "math", stages=("judge",))
    assert len(some.streams) == len(without.streams) + 2
    assert some.stage_tasks.config()["retention"] == "workqueue"
    columns = some.columns.config()
    assert (columns["allow_direct"], columns["discard"], columns["retention"]) == (True, "new", "limits")
    consumer = some.stage_consumer("judge", lease_s=30.0).config()
    assert (consumer["name"], consumer["filter_subject"]) == ("stage-judge", "trimtab.team.math.stages.judge")
    assert consumer["max_deliver"] == -1


@pytest.mark.parametrize("subject", ["", ".a", "a.", "a..b", "a b", "a.*", "a.>", "a\r\nPUB x", "x" * 1025])
def test_subjects_nobody_can_publish_to(subject: str) -> None:
    with pytest.raises(InvalidName):
        checked_subject(subject)


@given(st.dictionaries(st.from_regex(r"[A-Za-z-]{1,20}", fullmatch=True), st.text(max_size=30), max_size=5))
def test_headers_are_refused_or_carried_unchanged(headers: dict[str, str]) -> None:
    try:
        checked_headers(headers)
    except InvalidName:
        return
    try:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        assert encoded_size(headers) == len(f"NATS/1.0\r\n{lines}\r\n".encode())
    except UnicodeEncodeError:
        pytest.fail("a header that cannot be encoded was accepted")


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a*", ">", "é", "a" * 513])
def test_bad_keys(key: str) -> None:
    with pytest.raises(InvalidName):
        checked_key(key)


def test_what_the_server_leaves_out_equals_what_is_empty() -> None:
    assert differing_fields({"a": False, "b": 0, "c": 3, "d": "x"}, {"c": 3, "d": "y", "more": 1}) == ["d"]


def test_reconciling_keeps_what_we_do_not_set_and_names_what_is_fixed() -> None:
    wanted = {"name": "S", "storage": "file", "max_age": 5}
    assert reconciled("stream", wanted, {**wanted, "metadata": {"x": "y"}}, fixed=STREAM_FIXED) is None
    present = {"name": "S", "storage": "file", "max_age": 1, "metadata": {"x": "y"}}
    assert reconciled("stream", wanted, present, fixed=STREAM_FIXED) == {**present, "max_age": 5}
    with pytest.raises(TopologyMismatch, match="storage='memory', wanted 'file'") as mismatch:
        reconciled("stream", wanted, {**present, "storage": "memory"}, fixed=STREAM_FIXED)
    assert mismatch.value.field == "storage"
