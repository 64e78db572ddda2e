"""What is secret is in Secrets, and pods refer to it."""

from __future__ import annotations

import base64
import re

import pytest
import yaml

from tests.support.chart.rendering import SETS, Object, name_of, objects, of_kind, pod_templates, values_of

_PUBLIC_KEYS = {"user", "ca.crt", "tls.crt"}
_TELLING = re.compile("PASSWORD|SECRET_|KEY|TOKEN", re.IGNORECASE)


def _secret_values(entries: list[Object]) -> list[str]:
    return [
        base64.b64decode(value).decode().strip()
        for secret in of_kind(entries, "Secret")
        for key, value in secret["data"].items()
        if key not in _PUBLIC_KEYS
    ]


@pytest.mark.parametrize("name", SETS)
def test_no_secret_outside_of_secrets(name: str) -> None:
    entries = objects(values_of(name))
    elsewhere = yaml.safe_dump_all([entry for entry in entries if entry["kind"] != "Secret"], width=10**6)
    for value in _secret_values(entries):
        assert value not in elsewhere
        assert base64.b64encode(value.encode()).decode() not in elsewhere


@pytest.mark.parametrize("name", SETS)
def test_telling_variables_only_refer(name: str) -> None:
    for _, pod in pod_templates(objects(values_of(name))):
        for container in pod["spec"]["containers"]:
            for variable in container.get("env", []):
                if _TELLING.search(variable["name"]):
                    assert set(variable["valueFrom"]) == {"secretKeyRef"}


def test_secrets_are_made_only_for_evaluation() -> None:
    assert {name_of(entry) for entry in of_kind(objects({}), "Secret")} == {"trimtab-nats", "trimtab-object-store"}
    for name in ("existing", "own_namespace", "bare"):
        assert not of_kind(objects(values_of(name)), "Secret")


def test_two_installs_have_no_secret_in_common() -> None:
    here, there = _secret_values(objects({}, release="here")), _secret_values(objects({}, release="there"))
    assert len(set(here + there)) == len(here) + len(there)
