"""Accounts and users made from one seed: the same bytes within a window, nothing in common between jobs and roles."""

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
from trimtab.fabric.bus.users.accounts import JOB
from trimtab.fabric.bus.users.keys import InvalidNkey, KeyKind, KeyPair
from trimtab.fabric.bus.users.limits import AccountLimits
from trimtab.fabric.bus.users.mint import AccountMint, MintedUser, system_account
from trimtab.fabric.bus.users.trust import new_trust

ROLES = tuple(RIGHTS_OF)
OPERATOR = KeyPair.of(b"o" * 32, KeyKind.OPERATOR)
DAY = 24 * 3600
TOPOLOGY = JobTopology("team", "solver")


def _mint(
    *,
    now: Callable[[], float] = lambda: 10.5 * DAY,
    seed: KeyPair = OPERATOR,
    limits: AccountLimits | None = None,
) -> AccountMint:
    return AccountMint(seed.reveal_seed(), limits=limits or AccountLimits(), window_s=DAY, clock=now)


def _user(mint: AccountMint, role: str = "rollout", *, uid: str = "u", topology: JobTopology = TOPOLOGY) -> MintedUser:
    return mint.job_user(role, topology, job_uid=uid)


def _accounts(mint: AccountMint, *, uid: str = "u") -> dict[str, dict[str, Any]]:
    """What their tokens say, by name."""
    claims = [_claims(token) for token in mint.job_accounts(TOPOLOGY, job_uid=uid)]
    return {one["name"].rpartition("/")[2]: one for one in claims}


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


def _is_signed_by(key: KeyPair, token: str) -> bool:
    text, _, signature = token.rpartition(".")
    nacl.signing.SigningKey(key.raw).verify_key.verify(text.encode(), _decoded(signature))
    return bool(_claims(token)["iss"] == key.public)


def test_the_same_bytes_within_a_window_and_others_in_the_next() -> None:
    mints = [_mint(now=lambda at=at: at * DAY) for at in (10.0, 10.999, 11.0)]  # type: ignore[misc]
    early, late, next_one = (_user(mint) for mint in mints)
    assert early == late
    assert next_one.credentials != early.credentials
    # The user stays who it is; only its token is new.
    assert (_seed(next_one), next_one.inbox_prefix) == (_seed(early), early.inbox_prefix)
    claims = _claims(_token(late))
    assert (claims["iat"], claims["exp"], late.expires_at) == (10 * DAY, 12 * DAY, 12 * DAY)
    accounts = [mint.job_accounts(TOPOLOGY, job_uid="u") for mint in mints]
    assert accounts[0] == accounts[1] != accounts[2]
    # They end when they are deleted: an account that expired would take running jobs with it.
    assert all("exp" not in _claims(token) for token in accounts[0])


def test_jobs_and_roles_have_no_key_no_account_and_no_inbox_in_common() -> None:
    other = KeyPair.of(b"b" * 32, KeyKind.OPERATOR)
    mints = [_mint(seed=seed) for seed in (OPERATOR, other)]
    users = [_user(mint, role, uid=uid) for mint in mints for role in ROLES for uid in ("u", "v")]
    assert len({_seed(user) for user in users}) == len(users)
    assert len({_claims(_token(user))["iss"] for user in users}) == len(users)
    # Inboxes are those of a job and a role, whoever made the user.
    assert len({user.inbox_prefix for user in users}) == len(users) // 2
    ours = {_seed(_mint().keeper(job_uid="u")), _seed(_mint().administrator(job_uid="u")), _seed(_mint().registrar())}
    assert len(ours) == 3
    assert ours.isdisjoint(_seed(user) for user in users)


def test_a_token_is_signed_by_its_account_and_an_account_by_the_operator() -> None:
    user = _user(_mint())
    token = _token(user)
    claims = _claims(token)
    assert json.loads(_decoded(token.split(".")[0])) == {"typ": "JWT", "alg": "ed25519-nkey"}
    assert claims["iss"] == _mint().account_keys(job_uid="u")["rollout"]
    assert claims["sub"] == nkeys.from_seed(bytearray(_seed(user).encode())).public_key.decode()
    assert claims["nats"]["sub"]["allow"][0] == f"{user.inbox_prefix}.>"
    for account in _mint().job_accounts(TOPOLOGY, job_uid="u"):
        assert _is_signed_by(OPERATOR, account)
    assert _is_signed_by(OPERATOR, _mint().deletion(job_uid="u"))


@pytest.mark.parametrize("role", ROLES)
def test_a_roles_account_imports_what_the_role_may_publish_and_nothing_else(role: str) -> None:
    accounts = _accounts(_mint())
    keys = _mint().account_keys(job_uid="u")
    imports = accounts[role]["nats"]["imports"]
    rights = RIGHTS_OF[role](TOPOLOGY, inbox_prefix="_INBOX_x")
    asked = {one["subject"] for one in imports if one["type"] == "service" and "local_subject" not in one}
    assert asked == set(rights.publish)
    heard = {one["subject"] for one in imports if one["type"] == "stream"}
    assert heard == {subject for subject in rights.subscribe if subject.startswith("$KV.")}
    # JetStream's word on whether there is any goes to where it is not answered, so that it does not compete.
    assert {one["local_subject"]: one["subject"] for one in imports if "local_subject" in one} == {
        "$JS.API.INFO": "trimtab.unanswered"
    }
    exporters = {"batches": keys["dataflow"]}
    for one in imports:
        exporter = exporters.get("batches" if ".batches." in one["subject"] else "", keys[JOB])
        activation = _claims(one["token"])
        assert one["account"] == exporter == activation["iss"]
        assert activation["sub"] == keys[role]
    assert "streams" not in accounts[role]["nats"]["limits"]


def test_what_is_exported_is_for_those_who_are_let_in() -> None:
    accounts = _accounts(_mint())
    for account in accounts.values():
        assert all(export["token_req"] for export in account["nats"].get("exports", ()))
    exported = {export["subject"]: export for export in accounts[JOB]["nats"]["exports"]}
    imported = {
        one["subject"]
        for role in ROLES
        for one in accounts[role]["nats"]["imports"]
        if ".batches." not in one["subject"]
    }
    assert set(exported) == imported
    assert accounts[JOB]["nats"]["imports"] == []
    many = {subject for subject, export in exported.items() if export.get("response_type") == "Stream"}
    assert many == {
        subject
        for subject in exported
        if subject.startswith("$JS.API.CONSUMER.MSG.NEXT.")
        or (subject.startswith("$JS.API.DIRECT.GET.") and "$KV" not in subject)
    }


def test_limits_are_in_the_account_that_they_are_for() -> None:
    limits = AccountLimits(storage_bytes=1 << 30, connections=7, streams=11, consumers=13, subscriptions=17)
    accounts = {name: one["nats"]["limits"] for name, one in _accounts(_mint(limits=limits)).items()}
    job = accounts.pop(JOB)
    assert (job["disk_storage"], job["streams"], job["consumer"], job["subs"]) == (1 << 30, 11, 13, 17)
    assert {(one["conn"], one["subs"], one["leaf"], one["payload"]) for one in accounts.values()} == {(7, 17, 0, -1)}


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


def test_a_wrong_seed_is_refused_and_not_repeated() -> None:
    right = OPERATOR.reveal_seed()
    account = KeyPair.of(b"a" * 32, KeyKind.ACCOUNT).reveal_seed()
    middle = "B" if right[20] != "B" else "C"
    for wrong in (account, right[:-1], right[:20] + middle + right[21:], "", "hunter2", "SOÄÖ"):
        with pytest.raises(InvalidNkey, match="begins with SO") as refusal:
            AccountMint(wrong, clock=lambda: 0.0)
        assert not wrong or wrong not in str(refusal.value)


def test_secrets_do_not_show_in_what_is_printed() -> None:
    user, trust = _user(_mint()), new_trust(issued_at=1)
    assert _seed(user) not in repr(user)
    assert _token(user) not in repr(user)
    assert OPERATOR.reveal_seed() not in repr(OPERATOR)
    assert trust.operator_seed not in repr(trust)
    assert trust.operator_seed not in trust.server


def test_the_servers_part_names_the_operator_and_a_system_account_without_streams() -> None:
    trust = new_trust(issued_at=1)
    statements = {
        name: json.loads(value) for name, _, value in (line.partition(": ") for line in trust.server.splitlines())
    }
    ours = KeyPair(trust.operator_seed, KeyKind.OPERATOR)
    system = statements["system_account"]
    assert system == system_account(ours).public
    accounts = {public: _claims(token) for public, token in statements["resolver_preload"].items()}
    assert set(accounts) == {system}
    assert "streams" not in accounts[system]["nats"]["limits"]
    operator = _claims(statements["operator"])
    assert operator["iss"] == operator["sub"] == accounts[system]["iss"] == ours.public
    assert operator["nats"]["system_account"] == system
