"""The bus's pure parts: backoff, retry, runs, error envelopes and what must not be printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.credentials import Redactor, wants_tls, without_userinfo
from trimtab.fabric.bus.direct_get import contiguous_runs
from trimtab.fabric.bus.errors import (
    BusConflict,
    BusError,
    BusNotFound,
    BusRefused,
    BusTimeout,
    BusUnavailable,
    PayloadTooLarge,
    RemoteError,
    StreamFull,
)
from trimtab.fabric.bus.jetstream_api import ApiFault, error_from
from trimtab.fabric.bus.names import checked_headers
from trimtab.fabric.bus.requests import error_headers, error_in
from trimtab.fabric.bus.retry import until_deadline
from trimtab.fabric.settings import NatsSettings

NO_WAIT = FullJitter(base_s=0.0, cap_s=0.0)


@given(st.integers(0, 10_000))
def test_full_jitter_stays_under_its_ceiling(attempt: int) -> None:
    highest = FullJitter(base_s=0.1, cap_s=5.0, uniform=lambda low, high: high).delay_s(attempt)
    assert highest == min(5.0, 0.1 * 2 ** min(attempt, 60))
    assert FullJitter(base_s=0.1, cap_s=5.0, uniform=lambda low, high: low).delay_s(attempt) == 0.0


@given(st.lists(st.integers(1, 300), max_size=200), st.integers(1, 20))
def test_runs_cover_exactly_what_was_asked(sequences: list[int], max_run: int) -> None:
    runs = contiguous_runs(sequences, max_run=max_run)
    assert [s for first, count in runs for s in range(first, first + count)] == sorted(set(sequences))
    assert all(count <= max_run for _, count in runs)


async def test_only_what_may_help_is_repeated() -> None:
    outcomes: list[BusError | int] = [BusTimeout(""), BusUnavailable(""), 7]

    async def attempt(_: float) -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, BusError):
            raise outcome
        return outcome

    assert await until_deadline(attempt, deadline_s=5.0, backoff=NO_WAIT) == 7
    for final in (StreamFull(""), BusNotFound(""), BusConflict("", revision=1)):
        outcomes[:] = [final, 7]
        with pytest.raises(type(final)):
            await until_deadline(attempt, deadline_s=5.0, backoff=NO_WAIT)


@pytest.mark.parametrize("last", [BusUnavailable("the last"), BusTimeout("cut off")], ids=["told", "cut off"])
async def test_repeating_ends_with_the_deadline_and_says_what_it_was_told(last: BusError) -> None:
    now = 100.0
    outcomes: list[BusError] = [BusUnavailable("first"), BusUnavailable("second"), BusUnavailable("third"), last]

    async def attempt(timeout_s: float) -> None:
        nonlocal now
        now += 0.25
        raise outcomes.pop(0)

    with pytest.raises(BusUnavailable, match="the last" if isinstance(last, BusUnavailable) else "third"):
        await until_deadline(attempt, deadline_s=1.0, backoff=NO_WAIT, clock=lambda: now)
    assert outcomes == []


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (ApiFault(404, 10059, "stream not found"), BusNotFound),
        (ApiFault(400, 10071, "wrong last sequence: 19"), BusConflict),
        (ApiFault(400, 10054, "message size exceeds maximum allowed"), PayloadTooLarge),
        (ApiFault(503, 10077, "maximum bytes exceeded"), StreamFull),
        (ApiFault(503, 10077, "write 1.blk: no space left on device"), BusUnavailable),
        (ApiFault(503, 10023, "insufficient resources"), StreamFull),
        (ApiFault(500, 10047, "insufficient storage resources available"), StreamFull),
        (ApiFault(409, 10158, "duplicate message id is in process"), BusUnavailable),
        (ApiFault(429, 10167, "too many requests"), BusUnavailable),
        (ApiFault(400, 10002, "resource limits exceeded for account"), StreamFull),
        (ApiFault(503, 10008, "jetstream system temporarily unavailable"), BusUnavailable),
        (ApiFault(400, 10003, "bad request"), BusRefused),
    ],
)
def test_jetstream_errors_get_types(fault: ApiFault, expected: type[BusError]) -> None:
    error = error_from(fault, doing="x", size=10)
    assert type(error) is expected
    if isinstance(error, BusConflict):
        assert error.revision == 19


@given(message=st.text(max_size=2000), retryable=st.booleans())
def test_an_error_travels_in_headers(message: str, *, retryable: bool) -> None:
    headers = error_headers(RemoteError(message, kind="stale", retryable=retryable))
    back = error_in(checked_headers(headers))
    assert back is not None
    assert (back.kind, back.retryable) == ("stale", retryable)
    assert back.message == " ".join(message.split())[:500].strip()
    assert error_in({"Other": "x"}) is None


def test_secrets_are_cut_out_of_text() -> None:
    settings = NatsSettings(
        servers=("nats://u:in-url@h:1", "nats://h:2"), user="u", password=SecretStr("in-url-and-more")
    )
    assert Redactor(settings).clean("x in-url-and-more y in-url z") == "x *** y *** z"
    assert without_userinfo(settings.servers) == "h:1, nats://h:2"


def test_tls_is_wanted_by_scheme_or_file() -> None:
    assert not wants_tls(NatsSettings(servers=("nats://h:1",)))
    assert wants_tls(NatsSettings(servers=("tls://h:1",)))
    assert wants_tls(NatsSettings.model_validate({"servers": ["nats://h:1"], "tls_ca_file": "/ca.pem"}))
