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
from trimtab.operator.nats_account import AccountUnusable, open_mint
from trimtab.operator.settings import NatsAccountSettings, OperatorSettings

_SEED = KeyPair.generate(KeyKind.ACCOUNT).reveal_seed()
_BASE = {
    "TRIMTAB_NATS__SERVERS": "nats://n:4222",
    "TRIMTAB_OBJECT_STORE__BUCKET": "b",
    "TRIMTAB_IMAGES": "i",
}


def _loaded(**environment: str) -> OperatorSettings:
    return load_settings(_BASE | environment, OperatorSettings)


def test_no_account_is_one_user_for_all() -> None:
    assert _loaded().nats_account is None


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"TRIMTAB_NATS_ACCOUNT__PUBLIC_KEY": "A" * 56}, "one of seed, seed_file and secret; given: none"),
        (
            {"TRIMTAB_NATS_ACCOUNT__SEED": _SEED, "TRIMTAB_NATS_ACCOUNT__SEED_FILE": "/s"},
            "given: seed, seed_file",
        ),
        ({"TRIMTAB_NATS_ACCOUNT__SEED": _SEED, "TRIMTAB_NATS__USER": "me"}, "not for use with nats_account"),
        (
            {"TRIMTAB_NATS_ACCOUNT__SEED": _SEED, "TRIMTAB_NATS_ACCOUNT__RENEWAL_S": "60"},
            "renewal_s must not be below resync_s",
        ),
        ({"TRIMTAB_NATS_ACCOUNT__SECRET__NAME": "x"}, "TRIMTAB_NATS_ACCOUNT__SECRET__NAMESPACE: missing"),
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
    by_file = await open_mint(NatsAccountSettings(seed_file=file), client, clock=lambda: 1e9)
    by_value = await open_mint(NatsAccountSettings.model_validate({"seed": _SEED}), client, clock=lambda: 1e9)
    assert by_file is not None
    assert by_value is not None
    assert by_file.operator_user() == by_value.operator_user()
    assert await open_mint(None, client, clock=time.time) is None


async def test_a_seed_that_is_none_is_named_and_not_shown(client: KubeClient, tmp_path: Path) -> None:
    with pytest.raises(AccountUnusable, match="seed_file: .*absent cannot be read"):
        await open_mint(NatsAccountSettings(seed_file=tmp_path / "absent"), client, clock=time.time)
    with pytest.raises(
        AccountUnusable, match="nats_account: not the seed of an NKey for an account, which begins with SA"
    ) as refusal:
        await open_mint(NatsAccountSettings.model_validate({"seed": "hunter2"}), client, clock=time.time)
    assert "hunter2" not in str(refusal.value)
