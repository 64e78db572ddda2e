"""Which models in object storage the pods of a job may read."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.operator.pods.storage_policy import named_models


def _job(*models: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"policies": [{"name": f"p{number}", "model": model} for number, model in enumerate(models)]}}


@pytest.mark.parametrize(
    ("uri", "may"),
    [
        ("s3://trimtab/models/small", ("trimtab/models/small",)),
        ("s3://trimtab/models/small/", ("trimtab/models/small",)),
        ("s3://trimtab/models", ("trimtab/models",)),
        ("s3://trimtab/models-of-others/small", ()),
        ("s3://trimtab", ()),
        ("s3://another/models/small", ()),
        ("hf://team/small@v1", ()),
        ("/models/small", ()),
    ],
)
def test_a_job_may_read_the_models_that_it_names_where_all_may_take_some_from(uri: str, may: tuple[str, ...]) -> None:
    assert named_models(_job({"uri": uri}), ["trimtab/models"]) == may
    assert named_models(_job({"uri": uri}), []) == ()


def test_tokenizers_count_and_policies_without_a_model_do_not() -> None:
    job = _job({"uri": "/m", "tokenizer": "s3://a/words"})
    job["spec"]["policies"].append({"name": "judge", "frozen": True})
    assert named_models(job, ["a"]) == ("a/words",)
