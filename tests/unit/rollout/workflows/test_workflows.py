"""Loading a workflow, and the team it works with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.rollout.speakers import EchoSampler, assignment, chat_tokenizer, role
from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.api.workflow import WorkflowSource
from trimtab.fabric.pod import JobMisconfigured
from trimtab.rollout.policy.sampler import derived_seed
from trimtab.rollout.workflows.loader import load_workflow
from trimtab.rollout.workflows.rehearsal import Script
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import PromptUnusable, Team, Tokenizer, WorkflowError

SINGLE_TURN = "trimtab.rollout.workflows.single_turn:SingleTurn"
SOLVER_VERIFIER = "trimtab.rollout.workflows.solver_verifier:SolverVerifier"


def test_the_named_class_is_made_with_its_arguments() -> None:
    spec = WorkflowSpec(entrypoint=SINGLE_TURN, args={"prompt_column": "q", "check": "numeric"})
    assert isinstance(load_workflow(spec, folder=Path(), roles=["anyone"]), SingleTurn)


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "message"),
    [
        ("no_such_module_at_all:X", {}, "workflow.entrypoint 'no_such_module_at_all:X' cannot be loaded"),
        ("trimtab.rollout.workflows.single_turn:Missing", {}, "workflow.entrypoint"),
        (SINGLE_TURN, {"colour": "red"}, "workflow.args do not fit"),
        (SINGLE_TURN, {"check": "taste"}, "'taste': one of characters, exact, numeric, math"),
        (SOLVER_VERIFIER, {"verifier_text": "{problem}"}, "verifier_text lacks {solution}"),
        ("collections:OrderedDict", {}, "has no `async def run"),
        ("broken_workflow:Broken", {}, "workflow.entrypoint 'broken_workflow:Broken' cannot be loaded: not today"),
        ("raising_workflow:Raising", {}, "workflow.args do not fit raising_workflow:Raising: threshold"),
        ("shouting_workflow:Shouting", {}, "Loud.kind is 'TOO LOUD'"),
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
    (tmp_path / "shouting_workflow.py").write_text(
        "from trimtab.rollout.workflows.team import WorkflowError\n"
        "class Loud(WorkflowError):\n    kind = 'TOO LOUD'\nclass Shouting: pass\n"
    )
    spec = WorkflowSpec(entrypoint=entrypoint, args=arguments, source=WorkflowSource(path="."))
    with pytest.raises(JobMisconfigured, match=message):
        load_workflow(spec, folder=tmp_path, roles=["solver"])


def test_a_job_without_the_roles_that_a_workflow_needs_is_refused_at_once() -> None:
    spec = WorkflowSpec(entrypoint=SOLVER_VERIFIER, args={"check": "exact"})
    with pytest.raises(JobMisconfigured, match="needs the roles solver, verifier, the job has critic, solver"):
        load_workflow(spec, folder=Path(), roles=["solver", "critic"])
    load_workflow(spec, folder=Path(), roles=["verifier", "solver"])


@pytest.mark.parametrize("wanted", [None, "critic"])
def test_a_role_that_does_not_exist_is_named(wanted: str | None) -> None:
    team = Team({"b": role(EchoSampler(), "b"), "a": role(EchoSampler(), "a")}, assignment())
    with pytest.raises(WorkflowError, match=r"workflow.roles has a, b"):
        team.begin(wanted)


async def test_single_turn_names_the_column_that_is_missing() -> None:
    task = assignment(prompt="x")
    with pytest.raises(PromptUnusable, match="no column 'answer'; it has prompt"):
        await SingleTurn().run(task, Team({"solver": role(EchoSampler())}, task))


@pytest.mark.parametrize(("said", "reward"), [("2 and 2 make #### 4", 1.0), ("#### 5, no: #### 4", 1.0), ("4", 0.0)])
async def test_single_turn_scores_the_part_of_the_answer_that_the_pattern_finds(said: str, reward: float) -> None:
    task = assignment(q="2 + 2?", a=4)
    workflow = SingleTurn(prompt_column="q", answer_column="a", check="exact", answer_pattern=r"####\s*([0-9]+)")
    team = Team({"solver": role(Script(said), max_new_tokens=40)}, task)
    (scored,) = (await workflow.run(task, team)).scored
    assert scored.reward == reward


async def test_single_turn_takes_a_prompt_of_messages() -> None:
    tokenizer = Tokenizer.of(chat_tokenizer())
    sampler = Script("4", tokenizer=tokenizer)
    task = assignment(prompt=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2"}], answer=4)
    await SingleTurn().run(task, Team({"solver": role(sampler, tokenizer=tokenizer)}, task))
    asked = chat_tokenizer().decode(sampler.prompts[0])
    assert asked == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n"
    )


def test_seeds_of_neighbours_do_not_meet() -> None:
    seeds = {
        derived_seed(derived_seed(7, sample), name, turn) for sample in range(50) for name in "ab" for turn in range(9)
    }
    assert len(seeds) == 50 * 2 * 9
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derived_seed(7, 1) == derived_seed(7, 1)
