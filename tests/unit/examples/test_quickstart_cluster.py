"""The quickstart for a cluster is the quickstart: the same job, and the code that it is made by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from examples.quickstart.cluster import FILE, with_code
from trimtab.fabric.pod import read_job
from trimtab.operator.reconcile.refusals import refusal_of


def test_its_code_is_that_of_the_files_beside_it() -> None:
    assert with_code(FILE.read_text()) == FILE.read_text(), "run python -m examples.quickstart.cluster"


def test_a_cluster_takes_it_as_it_is() -> None:
    assert refusal_of(read_job(FILE).spec) is None


def test_it_is_the_same_job_but_for_where_its_files_are() -> None:
    code, there = yaml.safe_load_all(FILE.read_text())
    here = yaml.safe_load(FILE.with_name("job.yaml").read_text())
    for part in (there["spec"]["data"], there["spec"]["policies"][0]["trainer"], there["spec"]["pools"][0]):
        del part["template"]
    assert there["spec"]["workflow"].pop("source") == {"configMap": {"name": code["metadata"]["name"]}}
    del here["spec"]["workflow"]["source"]
    for spec in (there["spec"], here["spec"]):
        for place in _places(spec):
            place["uri"] = Path(place["uri"]).name
    assert there == here


def _places(spec: dict[str, Any]) -> list[dict[str, Any]]:
    sources = [*spec["data"]["prompts"], *spec["evaluation"]["benchmarks"]]
    return [*(policy["model"] for policy in spec["policies"]), *(source["jsonl"] for source in sources)]
