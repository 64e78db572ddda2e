"""Users made from an account's seed: the same bytes within a window, nothing in common between jobs and roles."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import nacl.signing
import nkeys  # type: ignore[import-untyped]
import pytest

from trimtab.fabric.bus.permissions import RIGHTS_OF
from trimtab.fabric.bus.rights import Rights
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.keys import InvalidNkey, KeyKind, KeyPair
from trimtab.fabric.bus.users.mint import MintedUser, UserMint
from trimtab.fabric.bus.users.trust import new_trust

ROLES = tuple(RIGHTS_OF)
ACCOUNT = KeyPair.of(b"a" * 32, KeyKind.ACCOUNT)
SIGNING = KeyPair.of(b"s" * 32, KeyKind.ACCOUNT)
DAY = 24 * 3600
TOPOLOGY = JobTopology("team", "solver")


def _mint(
    *, now: Callable[[], float] = lambda: 10.5 * DAY, seed: KeyPair = ACCOUNT, account: str | None = None
) -> UserMint:
    return UserMint(seed.reveal_seed(), account=account, window_s=DAY, clock=now)


def _user(mint: UserMint, role: str = "rollout", *, uid: str = "u", topology: JobTopology = TOPOLOGY) -> MintedUser:
    return mint.job_user(role, topology, job_uid=uid)


def _token(user: MintedUser) -> str:
    return user.credentials.splitlines()[1]


def _seed(user: MintedUser) -> str:
    lines = user.credentials.splitlines()
    return lines[lines.index("-----BEGIN USER NKEY SEED-----") + 1]


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _claims(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(_decoded(token.split(".")[1]))
    return claims


def test_the_same_bytes_within_a_window_and_others_in_the_next() -> None:
    early, late, next_one = (_user(_mint(now=lambda at=at: at * DAY)) for at in (10.0, 10.999, 11.0))  # type: ignore[misc]
    assert early == late
    assert next_one.credentials != early.credentials
    # The user stays who it is; only its token is new.
    assert (_seed(next_one), next_one.inbox_prefix) == (_seed(early), early.inbox_prefix)
    claims = _claims(_token(late))
    assert (claims["iat"], claims["exp"], late.expires_at) == (10 * DAY, 12 * DAY, 12 * DAY)


def test_jobs_and_roles_have_no_key_and_no_inbox_in_common() -> None:
    other = KeyPair.of(b"b" * 32, KeyKind.ACCOUNT)
    users = [
        _user(_mint(seed=seed), role, uid=uid) for seed in (ACCOUNT, other) for role in ROLES for uid in ("u", "v")
    ]
    assert len({_seed(user) for user in users}) == len(users)
    # Inboxes are those of a job and a role, in whichever account.
    assert len({user.inbox_prefix for user in users}) == len(users) // 2
    assert {_seed(_mint().operator_user()), _seed(_mint().administrator())}.isdisjoint(_seed(user) for user in users)


def test_the_token_is_signed_by_the_account_for_the_key_in_the_file() -> None:
    user = _user(_mint())
    token = _token(user)
    text, _, signature = token.rpartition(".")
    nacl.signing.SigningKey(b"a" * 32).verify_key.verify(text.encode(), _decoded(signature))
    claims = _claims(token)
    assert json.loads(_decoded(token.split(".")[0])) == {"typ": "JWT", "alg": "ed25519-nkey"}
    assert claims["iss"] == ACCOUNT.public
    assert claims["sub"] == nkeys.from_seed(bytearray(_seed(user).encode())).public_key.decode()
    assert "issuer_account" not in claims["nats"]
    assert claims["nats"]["sub"]["allow"][0] == f"{user.inbox_prefix}.>"


def test_a_signing_key_says_whose_it_is() -> None:
    claims = _claims(_token(_user(_mint(seed=SIGNING, account=ACCOUNT.public))))
    assert claims["iss"] == SIGNING.public
    assert claims["nats"]["issuer_account"] == ACCOUNT.public


@pytest.mark.parametrize("role", ROLES)
def test_every_right_of_a_role_names_its_job(role: str) -> None:
    rights = RIGHTS_OF[role](TOPOLOGY, inbox_prefix="_INBOX_x")
    for subject in (*rights.publish, *rights.subscribe):
        assert any(own in subject for own in ("team__solver__", "trimtab.team.solver.", "_INBOX_x.")), subject
        assert "STREAM.CREATE" not in subject
        assert "STREAM.UPDATE" not in subject


def test_only_a_dataflow_answers() -> None:
    answering = {role for role in ROLES if RIGHTS_OF[role](TOPOLOGY, inbox_prefix="_INBOX_x").answers}
    assert answering == {"dataflow"}
    rights = Rights(publish=(), subscribe=(), answers=True)
    assert rights.claims()["resp"] == {"max": 1, "ttl": 300 * 10**9}
    assert rights.configuration()["allow_responses"] == {"max": 1, "expires": "300s"}


def test_a_wrong_seed_is_refused_and_not_repeated() -> None:
    right = ACCOUNT.reveal_seed()
    user = KeyPair.of(b"u" * 32, KeyKind.USER).reveal_seed()
    middle = "B" if right[20] != "B" else "C"
    for wrong in (user, right[:-1], right[:20] + middle + right[21:], "", "hunter2", "SAÄÖ"):
        with pytest.raises(InvalidNkey, match="begins with SA") as refusal:
            UserMint(wrong, account=None, clock=lambda: 0.0)
        assert not wrong or wrong not in str(refusal.value)
    with pytest.raises(InvalidNkey, match="public NKey of an account"):
        UserMint(right, account="U" + ACCOUNT.public[1:], clock=lambda: 0.0)


def test_secrets_do_not_show_in_what_is_printed() -> None:
    user, trust = _user(_mint()), new_trust(issued_at=1)
    assert _seed(user) not in repr(user)
    assert _token(user) not in repr(user)
    assert ACCOUNT.reveal_seed() not in repr(ACCOUNT)
    assert trust.account_seed not in repr(trust)
    assert trust.account_seed not in trust.server


def test_the_servers_part_vouches_for_the_account_and_not_for_streams_of_the_system() -> None:
    trust = new_trust(issued_at=1)
    statements = {
        name: json.loads(value) for name, _, value in (line.partition(": ") for line in trust.server.splitlines())
    }
    assert statements["resolver"] == "MEMORY"
    ours = KeyPair(trust.account_seed, KeyKind.ACCOUNT).public
    system = statements["system_account"]
    accounts = {public: _claims(token) for public, token in statements["resolver_preload"].items()}
    assert set(accounts) == {ours, system}
    assert accounts[ours]["nats"]["limits"]["streams"] == -1
    assert "streams" not in accounts[system]["nats"]["limits"]
    operator = _claims(statements["operator"])
    assert operator["iss"] == operator["sub"] == accounts[ours]["iss"]
    assert operator["nats"]["system_account"] == system
