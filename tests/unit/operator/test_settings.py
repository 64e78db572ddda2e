from __future__ import annotations

import pytest

from trimtab.fabric.settings import SettingsError, load_settings
from trimtab.operator.settings import OperatorSettings

_REST = {
    "TRIMTAB_NATS__SERVERS": "nats://home:4222",
    "TRIMTAB_SHARED_NATS_ACCOUNT": "all-pods-trust-one-another",
    "TRIMTAB_OBJECT_STORE__BUCKET": "weights",
}
_BY_ROLE = {"TRIMTAB_IMAGES__DATAFLOW": "d:1", "TRIMTAB_IMAGES__ROLLOUT": "r:1", "TRIMTAB_IMAGES__TRAINER": "t:1"}


def _images(environment: dict[str, str]) -> list[str]:
    images = load_settings(_REST | environment, OperatorSettings).images
    return [images.of(role) for role in ("dataflow", "rollout", "trainer")]


def test_one_image_for_all_roles() -> None:
    assert _images({"TRIMTAB_IMAGES": "all:1"}) == ["all:1", "all:1", "all:1"]


def test_an_image_for_each_role() -> None:
    assert _images(_BY_ROLE) == ["d:1", "r:1", "t:1"]


def test_a_role_without_an_image_is_named() -> None:
    del (incomplete := dict(_BY_ROLE))["TRIMTAB_IMAGES__TRAINER"]
    with pytest.raises(SettingsError, match="TRIMTAB_IMAGES__TRAINER: missing"):
        _images(incomplete)
