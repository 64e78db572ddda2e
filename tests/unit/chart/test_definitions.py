"""The definitions in the chart are those of the API, and outlive the release."""

from __future__ import annotations

from tests.support.chart.rendering import name_of, objects, of_kind
from trimtab.api.crd import custom_resource_definitions


def test_they_are_the_apis_own_and_are_kept() -> None:
    rendered = of_kind(objects({}), "CustomResourceDefinition")
    assert {name_of(entry): entry["spec"] for entry in rendered} == {
        name_of(entry): entry["spec"] for entry in custom_resource_definitions()
    }
    for entry in rendered:
        assert entry["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_somebody_else_may_install_them() -> None:
    assert not of_kind(objects({"crds": {"enabled": False}}), "CustomResourceDefinition")
