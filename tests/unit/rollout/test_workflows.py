"""Loading a workflow, what it works with, and the reward of the simplest one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.rollout.speakers import EchoSampler, role
from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.api.workflow import WorkflowSource
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.spans import Producer, Span, model_span
from trimtab.rollout.seeds import derived_seed
from trimtab.rollout.workflows.loading import load_workflow
from trimtab.rollout.workflows.single_turn import SingleTurn, share_in_place
from trimtab.rollout.workflows.team import Assignment, Team, WorkflowError

SINGLE_TURN = "trimtab.rollout.workflows.single_turn:SingleTurn"
ASSIGNMENT = Assignment(prompt={"prompt": "ab", "answer": "b"}, seed=1, request_id="t.0", deadline_s=5.0)


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [("7", "7", 1.0), ("8", "7", 0.0), ("71", "7", 0.5), ("", "7", 0.0), ("", "", 1.0), ("1x3", "123", 2 / 3)],
)
def test_share_in_place(answer: str, expected: str, reward: float) -> None:
    assert share_in_place(answer, expected) == pytest.approx(reward)


def test_the_named_class_is_made_with_its_arguments() -> None:
    workflow = load_workflow(WorkflowSpec(entrypoint=SINGLE_TURN, args={"prompt_column": "q"}), folder=Path())
    assert isinstance(workflow, SingleTurn)


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "message"),
    [
        ("no_such_module_at_all:X", {}, "workflow.entrypoint 'no_such_module_at_all:X' cannot be loaded"),
        ("trimtab.rollout.workflows.single_turn:Missing", {}, "workflow.entrypoint"),
        (SINGLE_TURN, {"colour": "red"}, "workflow.args do not fit"),
        ("collections:OrderedDict", {}, "has no `async def run"),
        ("broken_workflow:Broken", {}, "workflow.entrypoint 'broken_workflow:Broken' cannot be loaded: not today"),
        ("raising_workflow:Raising", {}, "workflow.args do not fit raising_workflow:Raising: threshold"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entrypoint: str, arguments: dict[str, str], message: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_workflow.py").write_text("raise ValueError('not today')\n")
    (tmp_path / "raising_workflow.py").write_text(
        "class Raising:\n    def __init__(self):\n        raise ValueError('threshold')\n"
    )
    spec = WorkflowSpec(entrypoint=entrypoint, args=arguments, source=WorkflowSource(path="."))
    with pytest.raises(JobMisconfigured, match=message):
        load_workflow(spec, folder=tmp_path)


async def test_a_conversation_remembers_every_token_with_its_producer() -> None:
    sampler = EchoSampler()
    conversation = Team({"solver": role(sampler)}, ASSIGNMENT).begin()
    conversation.hear("ab")
    assert await conversation.speak() == "ba"
    conversation.hear("c")
    sampler.version = 4
    assert await conversation.speak() == "ca"
    assert conversation.token_ids == [97, 98, 98, 97, 99, 99, 97]
    assert conversation.logprobs == [-0.5] * 4
    assert conversation.turns == 2
    assert conversation.merged_spans() == (
        Span(2, Producer.PROMPT),
        model_span(2, version=3),
        Span(1, Producer.ENVIRONMENT),
        model_span(2, version=4),
    )
    assert len({settings.seed for settings in sampler.asked}) == 2


def test_hearing_nothing_adds_nothing() -> None:
    conversation = Team({"solver": role(EchoSampler())}, ASSIGNMENT).begin()
    conversation.hear("")
    assert conversation.merged_spans() == ()


@pytest.mark.parametrize("wanted", [None, "critic"])
def test_a_role_that_does_not_exist_is_named(wanted: str | None) -> None:
    team = Team({"b": role(EchoSampler(), "b"), "a": role(EchoSampler(), "a")}, ASSIGNMENT)
    with pytest.raises(WorkflowError, match=r"workflow.roles has a, b"):
        team.begin(wanted)


async def test_single_turn_names_the_column_that_is_missing() -> None:
    assignment = Assignment(prompt={"prompt": "x"}, seed=1, request_id="t.0", deadline_s=5.0)
    with pytest.raises(WorkflowError, match="'answer'"):
        await SingleTurn().run(assignment, Team({"solver": role(EchoSampler())}, assignment))


def test_seeds_of_neighbours_do_not_meet() -> None:
    seeds = {
        derived_seed(derived_seed(7, sample), name, turn) for sample in range(50) for name in "ab" for turn in range(9)
    }
    assert len(seeds) == 50 * 2 * 9
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derived_seed(7, 1) == derived_seed(7, 1)
