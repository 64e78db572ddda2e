"""Planner, executor and verifier: who hears what, who is rewarded for what, and where it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.trajectory import Finish
from trimtab.rollout.workflows.loader import load_workflow
from trimtab.rollout.workflows.planner import Planner
from trimtab.rollout.workflows.rehearsal import Script, rehearse
from trimtab.rollout.workflows.run_memory import RunMemory
from trimtab.rollout.workflows.team import PromptUnusable, WorkflowError

PROMPT = {"prompt": "What is 3 * (4 + 5)?", "answer": "27"}
ACCEPT, REJECT = "It fits. ACCEPT", "It does not fit. REJECT"


async def run(
    planner: list[str], *, verifier: list[str] | None = None, executor: list[str] | None = None, **arguments: Any
) -> tuple[list[tuple[str, float]], dict[str, Script]]:
    """Each scored conversation's role and reward, and what the roles heard."""
    scripts = {"planner": Script(*planner), "verifier": Script(*(verifier or []))}
    if executor is not None:
        scripts["executor"] = Script(*executor)
    given: dict[str, Any] = {"tools": {"calculator": {}}, "check": "numeric", "executor": executor is not None}
    workflow = Planner(**given | arguments)
    episode = await rehearse(workflow, PROMPT, scripts=scripts)
    return [(one.conversation.role.name, one.reward) for one in episode.scored], scripts


async def test_a_planner_uses_a_tool_and_answers_and_a_verifier_accepts() -> None:
    rewards, scripts = await run(["<calculator>3 * (4 + 5)</calculator>", "<answer>27</answer>"], verifier=[ACCEPT])
    assert rewards == [("planner", 1.0), ("verifier", 1.0)]
    first, second = scripts["planner"].heard
    assert first.startswith("What is 3 * (4 + 5)?")
    assert "calculator: works out an expression" in first
    assert second.endswith("<calculator>3 * (4 + 5)</calculator>\nResult:\n27\n")
    (judged,) = scripts["verifier"].heard
    assert "1. calculator: 3 * (4 + 5)\n   gave: 27" in judged
    assert "Proposed answer:\n27\n" in judged


async def test_an_executor_writes_what_the_tool_is_given() -> None:
    rewards, scripts = await run(
        ["<calculator>work out the product</calculator>", "<answer>27</answer>"],
        executor=["Like this:\n```\n3 * 9\n```"],
        verifier=[ACCEPT],
    )
    assert rewards == [("planner", 1.0), ("executor", 1.0), ("verifier", 1.0)]
    assert "for this step:\nwork out the product\n" in scripts["executor"].heard[0]
    assert scripts["planner"].heard[1].endswith("Result:\n27\n")
    assert "1. calculator: \n3 * 9".replace("\n", "") in scripts["verifier"].heard[0].replace("\n", "")


async def test_who_is_rejected_reads_why_and_goes_on() -> None:
    rewards, scripts = await run(
        ["<answer>26</answer>", "<calculator>27</calculator>", "<answer>27</answer>"], verifier=[REJECT, ACCEPT]
    )
    assert rewards == [("planner", 1.0), ("verifier", 1.0), ("verifier", 1.0)]
    assert "A verifier rejected this answer:\nIt does not fit. REJECT" in scripts["planner"].heard[1]
    assert "1. answer: 26\n   gave: rejected" in scripts["verifier"].heard[1]


@pytest.mark.parametrize(
    ("answer", "verdict", "planner", "verifier"),
    [
        ("27", ACCEPT, 1.0, 1.0),
        ("26", ACCEPT, 0.0, 0.0),
        ("26", REJECT, 0.0, 1.0),
        ("27", REJECT, 1.0, 0.0),
        ("26", "Hm.", 0.0, 0.0),
        ("27", "REJECT? No: ACCEPT", 1.0, 1.0),
    ],
)
async def test_the_planner_is_rewarded_for_the_answer_and_the_verifier_for_the_verdict(
    answer: str, verdict: str, planner: float, verifier: float
) -> None:
    rewards, _ = await run([f"<answer>{answer}</answer>"], verifier=[verdict], max_steps=1)
    assert rewards == [("planner", planner), ("verifier", verifier)]


async def test_who_never_answers_gets_nothing_and_the_verifier_has_nothing_to_learn() -> None:
    workflow = Planner(tools={"calculator": {}}, check="numeric", max_steps=2)
    scripts = {"planner": Script("<calculator>1 +</calculator>", "27"), "verifier": Script()}
    (scored,) = (await rehearse(workflow, PROMPT, scripts=scripts)).scored
    assert (scored.reward, scored.reward_parts) == (0.0, {"answered": 0.0, "tools": 1.0})
    assert scored.conversation.finish is Finish.TURNS
    assert scripts["planner"].heard[1].endswith("Result:\nError: no expression of numbers\n")


async def test_what_is_no_tool_is_told() -> None:
    _, scripts = await run(["<python>1</python>", "<answer>27</answer>"], verifier=[ACCEPT])
    assert scripts["planner"].heard[1].endswith("That is neither a tool nor an answer.\n")


async def test_a_tool_that_needs_a_sandbox_says_what_the_job_lacks() -> None:
    with pytest.raises(WorkflowError, match="the job has no sandbox: set workflow.sandbox"):
        await run(["<python>1</python>"], tools={"python": {}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_steps": 0}, "max_steps is 0: at least 1"),
        ({"tools": {}}, "at least one is needed"),
        ({"check": "vibes"}, "check is 'vibes'"),
        ({"planner_text": "?"}, "planner_text lacks {problem}"),
    ],
)
def test_arguments_that_cannot_be_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Planner(**{"tools": {"calculator": {}}} | arguments)


async def test_a_prompt_that_is_no_text_is_refused() -> None:
    scripts = {"planner": Script(), "verifier": Script()}
    with pytest.raises(PromptUnusable, match="column 'prompt' is a int: text is needed"):
        await rehearse(Planner(tools={"calculator": {}}), {"prompt": 7, "answer": "7"}, scripts=scripts)


def spec(**arguments: Any) -> WorkflowSpec:
    entrypoint = "trimtab.rollout.workflows.planner:Planner"
    return WorkflowSpec.model_validate({"entrypoint": entrypoint, "args": arguments, "source": {"path": "."}})


def test_a_job_has_the_roles_that_it_needs(tmp_path: Path) -> None:
    calculator: dict[str, Any] = {"calculator": {}}
    load_workflow(spec(tools=calculator), folder=tmp_path, roles=["planner", "verifier"])
    load_workflow(spec(tools=calculator, executor=True), folder=tmp_path, roles=["planner", "executor", "verifier"])
    with pytest.raises(JobMisconfigured, match="needs the roles executor, planner, verifier"):
        load_workflow(spec(tools=calculator, executor=True), folder=tmp_path, roles=["planner", "verifier"])


async def test_files_of_tools_lie_in_the_folder_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "the product is 27"}')
    searching = spec(tools={"search": {"corpus": "corpus.jsonl"}}, check="numeric")
    workflow = load_workflow(searching, folder=tmp_path, roles=["planner", "verifier"])
    script = Script("<search>product</search>", "<answer>27</answer>")
    await rehearse(workflow, PROMPT, scripts={"planner": script, "verifier": Script(ACCEPT)})
    assert script.heard[1].endswith("Result:\nthe product is 27\n")
    with pytest.raises(WorkflowError, match="within workflow.source.path, which the job lacks"):
        await rehearse(
            Planner(tools={"search": {"corpus": "corpus.jsonl"}}),
            PROMPT,
            scripts={"planner": Script(), "verifier": Script()},
        )


def test_memory_keeps_to_its_size_and_forgets_the_oldest_first() -> None:
    memory = RunMemory(1000)
    assert memory.shown == "nothing"
    memory.keep(tool="python", given="first", result="x" * 900)
    memory.keep(tool="search", given="second", result="y" * 300)
    assert len(memory.shown) <= 1000
    assert "1. python: first" in memory.shown
    assert "y" * 300 in memory.shown
    for number in range(20):
        memory.keep(tool="python", given=f"later {number}", result="z" * 150)
    assert len(memory.shown) <= 1000
    assert "first" not in memory.shown
    assert "22. python: later 19" in memory.shown
    assert memory.uses == 22
