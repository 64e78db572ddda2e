"""The manifests of docs/search.md, docs/worlds.md, docs/tools.md and docs/data.md are ones that a job takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from trimtab.api.evaluation import Evaluation
from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.cli.data.sets import SETS
from trimtab.rollout.workflows.loader import load_workflow

DOCS = Path(__file__).parents[4] / "docs"


def blocks(page: str) -> list[dict[str, object]]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("search.md", ["SearchQA"]),
        ("worlds.md", ["TextEnvironment", "TextEnvironment", "TextEnvironment"]),
        ("tools.md", ["Planner"]),
    ],
)
def test_every_workflow_on_a_page_can_be_made_from_its_manifest(tmp_path: Path, page: str, made: list[str]) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "a word"}')
    (tmp_path / "server.py").write_text("")
    specs = [WorkflowSpec.model_validate(block["workflow"]) for block in blocks(page)]
    workflows = [
        load_workflow(spec, folder=tmp_path, roles=[role.name for role in spec.roles] or ["solver"]) for spec in specs
    ]
    assert [type(workflow).__name__ for workflow in workflows] == made


def test_the_suites_are_evaluations() -> None:
    suites = [Evaluation.model_validate(block["evaluation"]) for block in blocks("data.md")]
    assert [len(suite.benchmarks) for suite in suites] == [3, 1, 2]


def test_every_set_is_on_the_page() -> None:
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    assert [name for name in SETS if f"`{name}`" not in page] == []
