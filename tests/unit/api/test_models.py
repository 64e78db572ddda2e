from __future__ import annotations

from typing import Any

import pytest

from tests.support.api.complete import complete_job, complete_pool, complete_trainer, variants
from tests.support.api.manifests import Manifest, job, pool, trainer
from trimtab.api.crd import KINDS
from trimtab.api.job import RLJob
from trimtab.api.model import ApiModel
from trimtab.api.pool import RolloutPool
from trimtab.api.schema import Schema, fill_defaults, structural_schema
from trimtab.api.trainer import Trainer
from trimtab.api.validation import parse

MODELS: dict[str, type[ApiModel]] = {kind.name: kind.model for kind in KINDS}
COMPLETE = [complete_job(), complete_pool(), complete_trainer()]
VALID = [job(), pool(), trainer(), *COMPLETE, *variants()]
IDS = [f"{manifest['kind']}-{manifest['metadata']['name']}-{at}" for at, manifest in enumerate(VALID)]


def _dumped(model: ApiModel) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_none=True)


def _unused(value: Any, schema: Schema, path: str) -> list[str]:
    """Fields of the schema that `value` leaves to their defaults."""
    if isinstance(value, list):
        parts = [_unused(item, schema["items"], f"{path}[]") for item in value]
        return sorted(set.intersection(*map(set, parts))) if parts else []
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    missing = [f"{path}.{name}" for name in schema["properties"] if name not in value]
    return missing + [
        field for name, item in value.items() for field in _unused(item, schema["properties"][name], f"{path}.{name}")
    ]


@pytest.mark.parametrize("manifest", VALID, ids=IDS)
def test_a_manifest_survives_the_round_trip_through_the_types(manifest: Manifest) -> None:
    first = parse(manifest)
    again = type(first).model_validate(_dumped(first))
    assert again == first
    assert type(first).model_validate_json(first.model_dump_json()) == first


@pytest.mark.parametrize("manifest", VALID, ids=IDS)
def test_the_types_and_the_schema_fill_in_the_same_defaults(manifest: Manifest) -> None:
    by_schema = fill_defaults(manifest, structural_schema(MODELS[manifest["kind"]]))
    by_types = _dumped(MODELS[manifest["kind"]].model_validate(manifest))
    assert _without_empty(by_types["spec"]) == _without_empty(by_schema["spec"])


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item != {}}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def test_the_complete_manifests_leave_little_untried() -> None:
    left = [
        field
        for manifest in COMPLETE
        for field in _unused(
            manifest["spec"], structural_schema(MODELS[manifest["kind"]])["properties"]["spec"], "spec"
        )
    ]
    alternatives = ("curriculum", "custom", "path", "jsonl", "parquet", "huggingFace", "generator", "selection")
    engines = ("args", "interpreter", "url", "model", "apiKeySecret", "m2Threshold")
    columns = ("algorithm.distill", "algorithm.critic", "kl.stage", "resumeFrom.checkpoint", "resumeFrom.publicKey")
    assert [field for field in left if not field.endswith(alternatives + engines + columns)] == []


def test_python_names_are_snake_case_and_wire_names_camel_case() -> None:
    read = parse(complete_job())
    assert isinstance(read, RLJob)
    assert read.spec.data.group_size == 16
    assert read.spec.autoscaling.scale_down.stabilization_seconds == 30
    assert "groupSize" in read.model_dump_json()
    assert "group_size" not in read.model_dump_json()


def test_objects_can_be_built_in_python() -> None:
    built = RolloutPool.model_validate(
        {"metadata": {"name": "a"}, "spec": {"job_ref": {"name": "j"}, "max_replicas": 3}}
    )
    assert (built.kind, built.spec.max_replicas, built.spec.engine.name) == ("RolloutPool", 3, "builtin")


def test_an_object_from_a_newer_server_is_still_read() -> None:
    manifest = trainer()
    manifest["spec"]["fieldOfTheFuture"] = 1
    assert Trainer.model_validate(manifest).spec.policy == "solver"


def test_values_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RLJob.model_validate(job()).spec.suspend = True  # type: ignore[misc]
