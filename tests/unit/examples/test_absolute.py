"""Manifests with absolute paths, for clusters whose pods see this machine's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.absolute import absolute
from trimtab.api.validation import problems

_EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", ["remote_pool", "solver_verifier", "quickstart"])
def test_every_path_is_absolute_and_the_manifest_stays_valid(name: str) -> None:
    manifest = absolute(_EXAMPLES / name / "job.yaml")
    assert problems(manifest) == []
    spec = manifest["spec"]
    sources = [*spec["data"]["prompts"], *spec.get("evaluation", {}).get("benchmarks", ())]
    uris = [policy["model"]["uri"] for policy in spec["policies"]] + [source["jsonl"]["uri"] for source in sources]
    for uri in uris:
        assert Path(uri).parent == _EXAMPLES / name
    if name == "solver_verifier":
        assert Path(spec["workflow"]["source"]["path"]) == _EXAMPLES / name
