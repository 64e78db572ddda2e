"""Settings come from the environment, mounted secrets and a file, in that order, and every problem is named at once."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from trimtab.fabric.settings import (
    NatsSettings,
    Settings,
    SettingsError,
    environment_for,
    load_settings,
    secret_values,
    write_secrets,
)

ENVIRON = {
    "HOME": "/root",
    "TRIMTAB_POD__NAMESPACE": "research",
    "TRIMTAB_POD__JOB": "quickstart",
    "TRIMTAB_POD__ROLE": "rollout",
    "TRIMTAB_POD__NAME": "quickstart-pool-a-0",
    "TRIMTAB_POD__POOL": "pool-a",
    "TRIMTAB_NATS__SERVERS": "nats://a:4222, nats://b:4222",
    "TRIMTAB_OBJECT_STORE__BUCKET": "jobs",
}
SECRET = "hunter2-and-more"


def _problems(environ: dict[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        load_settings(environ, Settings)
    for problem in refused.value.problems:
        assert problem in str(refused.value)
    assert refused.value.__cause__ is None
    assert SECRET not in str(refused.value)
    return list(refused.value.problems)


def test_the_environment_alone_is_enough() -> None:
    settings = load_settings(ENVIRON | {"TRIMTAB_NATS__CONNECT_TIMEOUT_S": "2.5"}, Settings)
    assert settings.nats.servers == ("nats://a:4222", "nats://b:4222")
    assert settings.nats.connect_timeout_s == 2.5
    assert settings.pod.pool == "pool-a"
    assert settings.logs.level == "info"


def test_environment_wins_over_secrets_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "nats: {user: from-file, password: from-file, request_timeout_s: 3}\n"
        "object_store: {region: from-file}\nlogs: {level: debug}\n"
    )
    secrets = tmp_path / "secrets"
    (secrets / "..2026_01_01").mkdir(parents=True)
    (secrets / "..2026_01_01" / "nats__password").write_text("from-secret\n")
    (secrets / "nats__password").symlink_to("..2026_01_01/nats__password")
    (secrets / "nats__user").write_text("from-secret")
    (secrets / "tls.crt").write_text("a certificate that a setting points to")
    environ = ENVIRON | {"TRIMTAB_SETTINGS_FILE": str(file), "TRIMTAB_SECRETS_DIR": str(secrets)}
    settings = load_settings(environ | {"TRIMTAB_NATS__USER": "from-environment"}, Settings)
    assert settings.nats.user == "from-environment"
    assert settings.nats.password == SecretStr("from-secret")
    assert settings.object_store.region == "from-file"
    assert settings.nats.request_timeout_s == 3.0
    assert settings.nats.connect_timeout_s == 5.0
    assert settings.logs.level == "debug"


def test_a_json_file_is_as_good_as_yaml(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"nats": {"servers": ["nats://c:4222"]}, "probes": {"port": 0}}))
    environ = {name: value for name, value in ENVIRON.items() if name != "TRIMTAB_NATS__SERVERS"}
    settings = load_settings(environ | {"TRIMTAB_SETTINGS_FILE": str(file)}, Settings)
    assert settings.nats.servers == ("nats://c:4222",)
    assert settings.probes.port == 0


def test_all_problems_are_listed_by_their_environment_name(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "nats__pasword").write_text(SECRET)
    file = tmp_path / "settings.yaml"
    file.write_text(f"nats: {{passwort: {SECRET}}}\nlogs: {{level: loud}}\n")
    problems = _problems(
        {
            "TRIMTAB_SETTINGS_FILE": str(file),
            "TRIMTAB_SECRETS_DIR": str(secrets),
            "TRIMTAB_POD__ROLE": SECRET,
            "TRIMTAB_NATS__CONNECT_TIMEOUT_S": SECRET,
            "TRIMTAB_NATS__SERVER": "nats://a:4222",
            "TRIMTAB_COLOUR": "blue",
        }
    )
    expected = (
        "TRIMTAB_POD__NAMESPACE: missing; set it, or pod.namespace in the settings file",
        "TRIMTAB_POD__ROLE: input should be 'dataflow', 'rollout', 'trainer' or 'tracking' (from environment); "
        "correct it",
        "TRIMTAB_NATS__SERVERS: missing; set it, or nats.servers in the settings file",
        "TRIMTAB_NATS__SERVER: not a setting (from environment); did you mean TRIMTAB_NATS__SERVERS?",
        "TRIMTAB_NATS__PASSWORT: not a setting (from settings file); did you mean TRIMTAB_NATS__PASSWORD?",
        "TRIMTAB_NATS__PASWORD: not a setting (from file nats__pasword in TRIMTAB_SECRETS_DIR); "
        "did you mean TRIMTAB_NATS__PASSWORD?",
        "TRIMTAB_OBJECT_STORE__…: missing; set TRIMTAB_OBJECT_STORE__BUCKET and its like, "
        "or the section object_store in the settings file",
        "TRIMTAB_COLOUR: not a setting (from environment); remove it",
    )
    for line in expected:
        assert line in problems
    assert any(
        problem.startswith("TRIMTAB_NATS__CONNECT_TIMEOUT_S: input should be a valid number") for problem in problems
    )
    assert any(problem.startswith("TRIMTAB_LOGS__LEVEL: input should be") for problem in problems)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "holds a list"),
        ("nats: [", "cannot be read"),
        ("\x00", "cannot be read"),
        ("!!python/object/apply:os.system [exit]", "cannot be read"),
        ("x" * (2 << 20), "cannot be read"),
    ],
)
def test_a_bad_settings_file_is_named_not_quoted(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    problems = _problems(ENVIRON | {"TRIMTAB_SETTINGS_FILE": str(file)})
    assert len(problems) == 1
    assert problems[0].startswith("TRIMTAB_SETTINGS_FILE: ")
    assert said in problems[0]


def test_missing_files_are_named(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    problems = _problems(ENVIRON | {"TRIMTAB_SETTINGS_FILE": nowhere, "TRIMTAB_SECRETS_DIR": nowhere})
    assert [problem.split(":")[0] for problem in problems] == ["TRIMTAB_SETTINGS_FILE", "TRIMTAB_SECRETS_DIR"]


def test_a_plain_value_in_place_of_a_section_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"nats: {SECRET}\n")
    problems = _problems(ENVIRON | {"TRIMTAB_SETTINGS_FILE": str(file)})
    assert len(problems) == 1
    assert problems[0].startswith("TRIMTAB_NATS: ")


def test_variables_that_kubernetes_makes_for_services_are_not_ours() -> None:
    links = {
        "TRIMTAB_NATS_SERVICE_HOST": "10.0.0.1",
        "TRIMTAB_NATS_SERVICE_PORT": "4222",
        "TRIMTAB_NATS_SERVICE_PORT_CLIENT": "4222",
        "TRIMTAB_NATS_PORT": "tcp://10.0.0.1:4222",
        "TRIMTAB_NATS_PORT_4222_TCP": "tcp://10.0.0.1:4222",
        "TRIMTAB_NATS_PORT_4222_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(ENVIRON | links, Settings) == load_settings(ENVIRON, Settings)


def test_a_child_reads_the_same_settings_with_its_secrets_in_files(tmp_path: Path) -> None:
    secrets = {
        "TRIMTAB_NATS__PASSWORD": SECRET,
        "TRIMTAB_OBJECT_STORE__SECRET_ACCESS_KEY": SECRET + "\n2",
        "TRIMTAB_NATS__TLS_CA_FILE": "/etc/ca.crt",
    }
    settings = load_settings(ENVIRON | secrets, Settings)
    assert load_settings(environment_for(settings), Settings) == settings

    folder = tmp_path / "secrets"
    write_secrets(settings, folder)
    environ = environment_for(settings, secrets_dir=folder)
    assert SECRET not in str(environ)
    assert load_settings(environ, Settings) == settings
    assert stat.S_IMODE((folder / "nats__password").stat().st_mode) == 0o600
    assert sorted(secret_values(settings)) == [SECRET, SECRET + "\n2"]


def test_secrets_by_name_are_secrets_too() -> None:
    """The log redaction has to know them, and a child to read them."""

    class Own(BaseModel):
        keys: dict[str, SecretStr] = {}

    settings = load_settings({"TRIMTAB_KEYS__JUDGE": SECRET}, Own)
    assert secret_values(settings) == (SECRET,)
    assert environment_for(settings) == {"TRIMTAB_KEYS__JUDGE": SECRET}
    assert load_settings(environment_for(Own()), Own) == Own()


def test_neither_repr_nor_a_validation_error_shows_a_secret() -> None:
    settings = load_settings(ENVIRON | {"TRIMTAB_NATS__PASSWORD": SECRET}, Settings)
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()
    with pytest.raises(ValidationError) as refused:
        NatsSettings.model_validate({"servers": [], "password": {"a": SECRET}, SECRET[:3]: SECRET})
    assert SECRET not in str(refused.value)


def test_a_part_can_have_settings_of_its_own() -> None:
    class Own(BaseModel):
        pod_count: int

    assert load_settings({"TRIMTAB_POD_COUNT": "3"}, Own).pod_count == 3
