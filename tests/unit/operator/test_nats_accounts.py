"""Settings of the account in whose name users of NATS are made, and what is said of one that cannot work."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trimtab.fabric.bus.users.keys import KeyKind, KeyPair
from trimtab.fabric.settings import SettingsError, load_settings
from trimtab.fabric.tls import ClientTls
from trimtab.kube.access import ClusterAccess
from trimtab.kube.client import KubeClient
from trimtab.operator.nats_accounts import open_mint
from trimtab.operator.own_secrets import SecretUnusable
from trimtab.operator.settings import NatsAccountsSettings, OperatorSettings

_SEED = KeyPair.generate(KeyKind.OPERATOR).reveal_seed()
_BASE = {
    "TRIMTAB_NATS__SERVERS": "nats://n:4222",
    "TRIMTAB_OBJECT_STORE__BUCKET": "b",
    "TRIMTAB_IMAGES": "i",
}


def _loaded(**environment: str) -> OperatorSettings:
    return load_settings(_BASE | environment, OperatorSettings)


def test_one_user_for_all_has_to_be_said_in_so_many_words() -> None:
    with pytest.raises(SettingsError, match="shared_nats_account=all-pods-trust-one-another"):
        _loaded()
    with pytest.raises(SettingsError, match="TRIMTAB_SHARED_NATS_ACCOUNT"):
        _loaded(TRIMTAB_SHARED_NATS_ACCOUNT="true")
    said = {"TRIMTAB_SHARED_NATS_ACCOUNT": "all-pods-trust-one-another"}
    assert _loaded(**said).nats_accounts is None
    with pytest.raises(SettingsError, match="give nats_accounts"):
        _loaded(**said, TRIMTAB_NATS_ACCOUNTS__SEED=_SEED)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"TRIMTAB_NATS_ACCOUNTS__RENEWAL_S": "700"}, "one of seed, seed_file and secret; given: none"),
        (
            {"TRIMTAB_NATS_ACCOUNTS__SEED": _SEED, "TRIMTAB_NATS_ACCOUNTS__LIMITS__STORAGE_BYTES": "1"},
            "TRIMTAB_NATS_ACCOUNTS__LIMITS__STORAGE_BYTES",
        ),
        (
            {
                "TRIMTAB_NATS_ACCOUNTS__SECRET__NAME": "x",
                "TRIMTAB_NATS_ACCOUNTS__SECRET__NAMESPACE": "y",
                "TRIMTAB_NATS_ACCOUNTS__SYSTEM_CREDENTIALS_FILE": "/s",
            },
            "system_credentials_file: not with secret",
        ),
        (
            {
                "TRIMTAB_NATS_ACCOUNTS__SEED": _SEED,
                "TRIMTAB_REMOTE_NATS__SERVERS": "nats://far:4222",
                "TRIMTAB_REMOTE_NATS__USER": "guest",
            },
            "remote_nats: user, password and credentials_file are not for use",
        ),
        (
            {"TRIMTAB_NATS_ACCOUNTS__SEED": _SEED, "TRIMTAB_NATS_ACCOUNTS__SEED_FILE": "/s"},
            "given: seed, seed_file",
        ),
        ({"TRIMTAB_NATS_ACCOUNTS__SEED": _SEED, "TRIMTAB_NATS__USER": "me"}, "not for use with nats_accounts"),
        (
            {"TRIMTAB_NATS_ACCOUNTS__SEED": _SEED, "TRIMTAB_NATS_ACCOUNTS__RENEWAL_S": "60"},
            "renewal_s must not be below resync_s",
        ),
        ({"TRIMTAB_NATS_ACCOUNTS__SECRET__NAME": "x"}, "TRIMTAB_NATS_ACCOUNTS__SECRET__NAMESPACE: missing"),
    ],
)
def test_what_cannot_work_is_refused_by_name(environment: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        _loaded(**environment)
    assert told in str(refusal.value)
    assert _SEED not in str(refusal.value)


@pytest.fixture
def client() -> KubeClient:
    """Nobody dials it: there is no Secret in these."""
    return KubeClient(ClusterAccess(server="https://127.0.0.1:1", tls=ClientTls()), user_agent="test")


async def test_a_seed_from_a_file_makes_users(client: KubeClient, tmp_path: Path) -> None:
    file = tmp_path / "seed"
    file.write_text(f"{_SEED}\n")
    by_file = await open_mint(NatsAccountsSettings(seed_file=file), client, clock=lambda: 1e9)
    by_value = await open_mint(NatsAccountsSettings.model_validate({"seed": _SEED}), client, clock=lambda: 1e9)
    assert by_file is not None
    assert by_value is not None
    assert by_file.registrar() == by_value.registrar()
    assert await open_mint(None, client, clock=time.time) is None


async def test_a_seed_that_is_none_is_named_and_not_shown(client: KubeClient, tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="seed_file: .*absent cannot be read"):
        await open_mint(NatsAccountsSettings(seed_file=tmp_path / "absent"), client, clock=time.time)
    with pytest.raises(
        SecretUnusable, match="nats_accounts.seed: not the seed of an NKey for an operator, which begins with SO"
    ) as refusal:
        await open_mint(NatsAccountsSettings.model_validate({"seed": "hunter2"}), client, clock=time.time)
    assert "hunter2" not in str(refusal.value)
