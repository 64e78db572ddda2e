"""The operator reads what the chart mounts: by its own loader, from the files that the pod would have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.support.chart.mounted import volume_named, write_projected
from tests.support.chart.rendering import SETS, named, objects, pod_templates, values_of
from trimtab.fabric.settings import load_settings
from trimtab.operator.settings import OperatorSettings, OwnSecret
from trimtab.operator.stream_limits import StreamDefaults

_SECRETS = Path("/trimtab/secrets")


def _loaded(name: str, folder: Path) -> tuple[OperatorSettings, Path]:
    return _loaded_from(values_of(name), folder)


def _loaded_from(values: dict[str, Any], folder: Path) -> tuple[OperatorSettings, Path]:
    entries = objects(values)
    pod = named(entries, "Deployment", "trimtab-operator")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    secrets = folder / "secrets"
    write_projected(volume_named(pod, mounts[given["TRIMTAB_SECRETS_DIR"]]), entries, secrets)
    file = Path(given["TRIMTAB_SETTINGS_FILE"])
    config = volume_named(pod, mounts[str(file.parent)])["configMap"]["name"]
    (folder / file.name).write_text(named(entries, "ConfigMap", config)["data"][file.name], encoding="utf-8")
    environment = {"TRIMTAB_SECRETS_DIR": str(secrets), "TRIMTAB_SETTINGS_FILE": str(folder / file.name)}
    return load_settings(environment, OperatorSettings), secrets


def _paths(settings: BaseModel) -> Iterator[Path]:
    for _, value in settings:
        if isinstance(value, BaseModel):
            yield from _paths(value)
        elif isinstance(value, Path):
            yield value


@pytest.mark.parametrize("name", SETS)
def test_settings_load_and_files_are_where_they_say(name: str, tmp_path: Path) -> None:
    settings, secrets = _loaded(name, tmp_path)
    for section in (settings.nats, settings.object_store, settings.remote_nats, settings.remote_object_store):
        for path in _paths(section) if section else ():
            assert path.parent == _SECRETS
            assert (secrets / path.name).is_file()


def test_evaluation_servers(tmp_path: Path) -> None:
    settings, _ = _loaded("evaluation", tmp_path)
    assert settings.nats.servers == ("tls://trimtab-nats.trimtab-system.svc:4222",)
    assert not settings.nats.names_a_user
    assert settings.nats_accounts is not None
    assert settings.nats_accounts.secret == OwnSecret(name="trimtab-nats-accounts", namespace="trimtab-system")
    assert settings.nats_accounts.limits.storage_bytes == 1 << 30
    assert settings.nats_sync_interval == "always"
    assert settings.streams == StreamDefaults()
    assert settings.shared_nats_account is None
    assert settings.object_store.endpoint_url == "https://trimtab-object-store.trimtab-system.svc:8333"
    assert settings.object_store.secret_access_key is not None
    assert settings.lease.namespace == "trimtab-system"
    assert settings.namespaces == ()
    assert settings.remote_nats is None


def test_existing_servers_with_certificates(tmp_path: Path) -> None:
    settings, _ = _loaded("existing", tmp_path)
    assert settings.nats.user == "nats-user/user"
    assert settings.nats.password is not None
    assert settings.nats.password.get_secret_value() == "nats-user/password"
    assert settings.nats.tls_key_file == _SECRETS / "nats-tls.key"
    assert settings.object_store.bucket == "models"
    assert settings.object_store.access_key_id is not None
    assert settings.object_store.access_key_id.get_secret_value() == "s3-user/id"
    assert settings.logs.level == "debug"


def test_existing_servers_with_accounts(tmp_path: Path) -> None:
    settings, secrets = _loaded("minted", tmp_path)
    assert not settings.nats.names_a_user
    accounts = settings.nats_accounts
    assert accounts is not None
    assert accounts.seed is not None
    assert accounts.seed.get_secret_value() == "nats-accounts/signing.seed"
    assert accounts.system_credentials_file == _SECRETS / "nats-system-credentials"
    assert (secrets / "nats-system-credentials").is_file()
    assert accounts.limits.storage_bytes == 20 << 30


def test_one_user_where_all_pods_trust_one_another(tmp_path: Path) -> None:
    settings, _ = _loaded("existing", tmp_path)
    assert settings.nats_accounts is None
    assert settings.shared_nats_account == "all-pods-trust-one-another"


def test_what_pods_elsewhere_dial_with(tmp_path: Path) -> None:
    settings, _ = _loaded("remote", tmp_path)
    assert settings.remote_nats is not None
    assert settings.remote_nats.tls_ca_file == _SECRETS / "remote-nats-ca.crt"
    assert not settings.remote_nats.names_a_user
    assert settings.remote_object_store is not None
    assert settings.remote_object_store.bucket == settings.object_store.bucket


def test_namespaces_are_those_of_the_rights(tmp_path: Path) -> None:
    settings, _ = _loaded("namespaced", tmp_path)
    assert settings.namespaces == ("team-a", "team-b")


def test_a_changed_setting_restarts_the_operator_and_nothing_else() -> None:
    before, after = (dict(pod_templates(objects(values))) for values in ({}, {"operator": {"workers": 9}}))
    assert {name for name in before if before[name] != after[name]} == {"trimtab-operator"}


def test_pods_of_jobs_are_pulled_with_the_release_s_secrets(tmp_path: Path) -> None:
    settings, _ = _loaded("namespaced", tmp_path)
    assert settings.image_pull_secrets == ("registry",)


def test_pods_of_jobs_request_something(tmp_path: Path) -> None:
    settings, _ = _loaded("evaluation", tmp_path)
    for role in ("dataflow", "rollout", "engine", "trainer", "tracking"):
        assert set(settings.requests.of(role)) == {"cpu", "memory"}


def test_streams_of_jobs_and_how_the_servers_sync_are_handed_on(tmp_path: Path) -> None:
    values = values_of("existing")
    values["nats"]["existing"]["syncInterval"] = "5s"
    values.setdefault("jobs", {})["streams"] = {"replicas": 3, "maxBytes": "2Gi", "maxMessages": 1000}
    settings, _ = _loaded_from(values, tmp_path)
    assert settings.nats_sync_interval == 5
    assert settings.streams == StreamDefaults(replicas=3, max_bytes=2 << 30, max_messages=1000)
