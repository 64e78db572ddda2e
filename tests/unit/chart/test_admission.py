"""The webhook as the chart installs it: the operator's own words, its off switch, and who makes the certificate."""

from __future__ import annotations

from typing import Any

from tests.support.chart.rendering import named, objects, of_kind, values_of
from trimtab.operator.admission.configuration import REVIEW, webhook_configuration

_NAME = "trimtab-system-trimtab-admission"
_CERT_MANAGER: dict[str, Any] = {"admission": {"certManager": {"enabled": True}}}


def _hook(values: dict[str, Any]) -> dict[str, Any]:
    (configuration,) = of_kind(objects(values), "ValidatingWebhookConfiguration")
    (hook,) = configuration["webhooks"]
    return dict(hook)


def test_the_api_server_asks_what_the_operator_answers() -> None:
    service = {"name": "trimtab-admission", "namespace": "trimtab-system", "port": 443, "path": f"/{REVIEW}"}
    operator = "system:serviceaccount:trimtab-system:trimtab-operator"
    expected = webhook_configuration(_NAME, client_config={"service": service}, operator=operator)
    assert [_hook({})] == expected["webhooks"]


def test_it_can_be_switched_off_and_is_off_where_the_operator_may_not_tell_of_its_certificate() -> None:
    for values in ({"admission": {"enabled": False}}, values_of("namespaced")):
        entries = objects(values)
        assert not of_kind(entries, "ValidatingWebhookConfiguration")
        assert "admission:" not in named(entries, "ConfigMap", "trimtab-operator")["data"]["settings.yaml"]


def test_cert_manager_makes_the_certificate_where_it_is_told_to() -> None:
    entries = objects(values_of("namespaced") | _CERT_MANAGER)
    (certificate,) = of_kind(entries, "Certificate")
    assert certificate["spec"]["dnsNames"] == ["trimtab-admission.trimtab-system.svc"]
    assert certificate["spec"]["issuerRef"] == {
        "kind": "Issuer",
        "name": "trimtab-admission",
        "group": "cert-manager.io",
    }
    (configuration,) = of_kind(entries, "ValidatingWebhookConfiguration")
    assert configuration["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": "trimtab-system/trimtab-admission"
    }
    selected = configuration["webhooks"][0]["namespaceSelector"]["matchExpressions"][0]
    assert selected["values"] == ["team-a", "team-b"]
    assert not of_kind(entries, "ClusterRole")
    own = {"admission": {"certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer", "name": "ours"}}}}
    entries = objects(own)
    assert not of_kind(entries, "Issuer")
    assert of_kind(entries, "Certificate")[0]["spec"]["issuerRef"]["name"] == "ours"
