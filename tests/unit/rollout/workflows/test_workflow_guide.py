"""The code and the manifests of docs/workflows.md do what the page says; those of its other pages can be made."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.rollout.workflows.loader import load_workflow
from trimtab.rollout.workflows.rehearsal import Script, rehearse
from trimtab.rollout.workflows.team import WorkflowError
from trimtab.rollout.workflows.text_environment import TextEnvironment

GUIDE = Path(__file__).parents[4] / "docs" / "workflows.md"


def blocks(language: str, page: Path = GUIDE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def made_from(page: Path) -> list[str]:
    """The classes of all workflows on a page."""
    made = []
    for block in blocks("yaml", page):
        document = yaml.safe_load(block)
        if "workflow" not in document:
            continue
        spec = WorkflowSpec.model_validate(document["workflow"])
        roles = [role.name for role in spec.roles] or ["solver"]
        made.append(type(load_workflow(spec, folder=page.parent, roles=roles)).__name__)
    return made


@pytest.fixture
def my_workflow(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """All Python on the page, as the module that its manifest names. Its asserts run here."""
    module = ModuleType("my_workflow")
    monkeypatch.setitem(sys.modules, "my_workflow", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for block in blocks("python"):
        exec(compile(block, str(GUIDE), "exec"), vars(module))
    return module


def test_every_workflow_on_the_page_can_be_made_from_its_manifest(my_workflow: ModuleType) -> None:
    assert made_from(GUIDE) == ["SingleTurn", "SingleTurn", "SolverVerifier", "TextEnvironment", "BestOfTwo"]


@pytest.mark.parametrize(
    ("page", "classes"),
    [("code.md", ["SingleTurn", "SolverSelector", "SolverTests"]), ("judges.md", ["JudgedSteps"])],
)
def test_the_workflows_of_the_other_pages_can_be_made(page: str, classes: list[str]) -> None:
    assert made_from(GUIDE.with_name(page)) == classes


async def test_the_environment_on_the_page_can_be_played(my_workflow: ModuleType) -> None:
    script = Script("17", "42")
    workflow = TextEnvironment(environment="my_workflow:Door")
    (scored,) = (await rehearse(workflow, {"code": "42"}, scripts={"solver": script})).scored
    assert scored.reward == 1.0
    assert script.heard[1] == "The door has a keypad. Two digits: 17\n0 right. Two digits: "


def test_the_kind_of_failure_on_the_page_is_one(my_workflow: ModuleType) -> None:
    busy: Any = my_workflow.SandboxBusy
    assert issubclass(busy, WorkflowError)
    assert busy.kind == "sandbox-busy"


async def test_a_script_that_ends_too_soon_says_what_it_heard(my_workflow: ModuleType) -> None:
    scripts = {"solver": Script("5", "4"), "selector": Script()}
    with pytest.raises(WorkflowError, match="no line left for .*selector.*Which is right"):
        await rehearse(my_workflow.BestOfTwo(), {"problem": "2+2", "answer": "4"}, scripts=scripts)
