"""What this version does not do is named, and what is left at its default is not held against a manifest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api.complete import complete_job
from tests.support.api.manifests import changed, job, staged_job
from trimtab.api.job import RLJob
from trimtab.api.support import unsupported, without_meaning_here
from trimtab.api.validation import parse


def _unsupported(changes: dict[str, Any]) -> list[str]:
    parsed = parse(changed(job(), changes))
    assert isinstance(parsed, RLJob)
    return unsupported(parsed.spec)


def test_a_plain_job_is_supported() -> None:
    assert _unsupported({}) == []


def test_pools_in_other_clusters_are_supported() -> None:
    cluster = {"kubeconfigSecret": {"name": "far", "key": "kubeconfig"}}
    assert _unsupported({"spec.pools.1.cluster": cluster}) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spec.policies.0.sampling.temperature": 0}, "spec.policies[0].sampling.temperature"),
        (
            {"spec.pools.1.engine": {"name": "sglang", "url": "http://gpu:30000"}},
            "spec.pools[1].engine.url",
        ),
        ({"spec.data.shards": 2}, "spec.data.shards"),
    ],
    ids=str,
)
def test_what_is_asked_for_and_not_done_is_named(changes: dict[str, Any], field: str) -> None:
    assert _unsupported(changes) == [field]


@pytest.mark.parametrize(
    "engine",
    [
        {"name": "builtin"},
        {"name": "sglang", "args": ["--tp-size=2"], "interpreter": "/opt/sglang/bin/python"},
        {"name": "openai", "url": "https://models.example.org/v1", "model": "large"},
    ],
    ids=lambda engine: str(engine["name"]),
)
def test_engines_that_this_version_runs_are_supported(engine: dict[str, Any]) -> None:
    assert _unsupported({"spec.pools.1.engine": engine}) == []


SGLANG = {"name": "sglang"}
OPENAI = {"name": "openai", "url": "https://models.example.org/v1", "model": "large"}


@pytest.mark.parametrize(
    ("engine", "sampling", "fields"),
    [
        (None, {"topP": 0.9, "topK": 500, "minP": 0.1}, []),
        (SGLANG, {"topK": 64}, []),
        (SGLANG, {"topK": 64, "topP": 0.9}, []),
        (SGLANG, {"topK": 20, "minP": 0.05}, []),
        (SGLANG, {"topK": 65}, ["topK"]),
        (SGLANG, {"topP": 0.9}, ["topP"]),
        (SGLANG, {"minP": 0.1}, ["minP"]),
        (SGLANG, {"topK": 20, "topP": 0.9, "minP": 0.1}, ["minP"]),
        (OPENAI, {"topK": 20, "topP": 0.9}, ["topP", "topK"]),
    ],
    ids=str,
)
def test_tokens_are_left_out_where_the_engine_s_logprobs_say_so(
    engine: dict[str, Any] | None, sampling: dict[str, Any], fields: list[str]
) -> None:
    changes: dict[str, Any] = {"spec.policies.0.sampling": sampling}
    if engine is not None:
        changes |= {"spec.pools.0.engine": engine}
    assert _unsupported(changes) == [f"spec.policies[0].sampling.{field}" for field in fields]


def test_a_key_for_sglang_is_not_passed_over_in_silence() -> None:
    engine = {"name": "sglang", "url": "http://gpu:30000", "apiKeySecret": {"name": "engine", "key": "token"}}
    endpoint = {"name": "openai", "url": "https://llm", "model": "m"}
    engines = [{"policy": "solver"}, {"policy": "verifier", "endpoint": endpoint}]
    frozen = {"spec.policies.1.frozen": True, "spec.pools.1.engines": engines}
    assert _unsupported({"spec.pools.1.engine": engine, **frozen}) == ["spec.pools[1].engine.apiKeySecret"]


def test_what_an_endpoint_cannot_be_told_is_not_passed_over_in_silence() -> None:
    for name, fields in (("anthropic", ["spec.policies[1].sampling.minP"]), ("openai", [])):
        endpoint = {"name": name, "url": "https://llm", "model": "m"}
        engines = [{"policy": "solver"}, {"policy": "verifier", "endpoint": endpoint}]
        changes = {"spec.policies.1.frozen": True, "spec.policies.1.sampling": {"minP": 0.1}}
        assert _unsupported({**changes, "spec.pools.1.engines": engines}) == fields


@pytest.mark.parametrize(
    ("sampling", "fields"),
    [({"topP": 0.9}, ["topP"]), ({"temperature": 0, "topK": 5}, ["temperature", "topK"]), ({"temperature": 0.5}, [])],
    ids=str,
)
def test_scores_are_of_all_tokens_at_a_temperature(sampling: dict[str, Any], fields: list[str]) -> None:
    parsed = parse(changed(staged_job(), {"spec.policies.2.sampling": sampling}))
    assert isinstance(parsed, RLJob)
    found = [field for field in unsupported(parsed.spec) if "sampling" in field]
    assert found == [f"spec.policies[2].sampling.{field}" for field in fields]


def test_every_name_in_the_list_is_a_field_of_the_api() -> None:
    """A renamed field would raise AttributeError on a manifest that sets everything."""
    parsed = parse(complete_job())
    assert isinstance(parsed, RLJob)
    assert len(unsupported(parsed.spec)) > 3
    assert len(without_meaning_here(parsed.spec)) > 5


def test_what_only_a_cluster_has_is_named_and_no_reason_to_refuse() -> None:
    container = {"name": "trainer", "command": ["python", "mine.py"], "args": ["--fast"]}
    changes = {
        "spec.policies.0.trainer.template": {"spec": {"containers": [container]}},
        "spec.policies.1.trainer.template": {"spec": {"nodeSelector": {"gpu": "h200"}}},
        "spec.ttlSecondsAfterFinished": 60,
    }
    parsed = parse(changed(job(), changes))
    assert isinstance(parsed, RLJob)
    assert unsupported(parsed.spec) == []
    assert without_meaning_here(parsed.spec) == [
        "spec.ttlSecondsAfterFinished",
        "spec.policies[1].trainer.template",
    ]
