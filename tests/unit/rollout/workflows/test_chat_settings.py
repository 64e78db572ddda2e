"""System prompt, suffix, thinking and tools are arguments of the shipped workflows, and none is left out in silence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rollout.speakers import TEMPLATE, EchoSampler, assignment, chat_tokenizer, role
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.rehearsal import CHARACTERS, Script
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.solver_verifier import SolverVerifier
from trimtab.rollout.workflows.team import Team, Workflow, WorkflowError
from trimtab.rollout.workflows.text_environment import TextEnvironment

THINKING = """\
{%- if tools -%}<|im_start|>tools
{{ tools | map(attribute="name") | join(",") }}<|im_end|>
{% endif -%}
""" + TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif",
    "<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif",
)
CHAT = Tokenizer.of(chat_tokenizer())
REASONING = Tokenizer.of(chat_tokenizer(THINKING))
GUESSING = "trimtab.rollout.workflows.number_guessing:NumberGuessing"


async def heard(
    workflow: Workflow, scripts: dict[str, Script], *, prompt: dict[str, Any], tokenizer: Tokenizer
) -> None:
    roles = {name: role(script, name, tokenizer=tokenizer, max_new_tokens=64) for name, script in scripts.items()}
    await workflow.run(assignment(**prompt), Team(roles, assignment(**prompt)))


async def test_a_single_turn_begins_with_the_system_prompt_and_ends_with_the_suffix() -> None:
    solver = Script("4", tokenizer=CHAT)
    workflow = SingleTurn(check="exact", chat={"system": "Be brief.", "suffix": " /no_think"})
    await heard(workflow, {"solver": solver}, prompt={"prompt": "2+2?", "answer": "4"}, tokenizer=CHAT)
    assert solver.heard == ["system\nBe brief.\nuser\n2+2? /no_think\nassistant\n"]


async def test_a_prompt_of_messages_keeps_its_own_system_prompt() -> None:
    solver = Script("4", tokenizer=CHAT)
    messages = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "2+2?"}]
    workflow = SingleTurn(check="exact", chat={"system": "Be brief.", "suffix": "!"})
    await heard(workflow, {"solver": solver}, prompt={"prompt": messages, "answer": "4"}, tokenizer=CHAT)
    assert solver.heard == ["system\nBe exact.\nuser\n2+2?!\nassistant\n"]


async def test_thinking_and_tools_reach_the_template() -> None:
    solver = Script("4", tokenizer=REASONING)
    workflow = SingleTurn(check="exact", chat={"enable_thinking": False, "tools": [{"name": "add"}, {"name": "sub"}]})
    await heard(workflow, {"solver": solver}, prompt={"prompt": "2+2?", "answer": "4"}, tokenizer=REASONING)
    assert solver.heard == ["tools\nadd,sub\nuser\n2+2?\nassistant\n<think></think>"]


async def test_solver_and_verifier_have_settings_of_their_own_in_every_turn() -> None:
    solver, verifier = Script("5", "4", tokenizer=REASONING), Script("REJECT", "ACCEPT", tokenizer=REASONING)
    workflow = SolverVerifier(
        check="exact",
        solver_text="{problem}",
        verifier_text="{problem} {solution}",
        retry_text="{feedback}",
        next_text="{solution}",
        solver_chat={"system": "Solve.", "enable_thinking": False},
        verifier_chat={"system": "Judge.", "suffix": "?"},
    )
    prompt = {"prompt": "2+2", "answer": "4"}
    await heard(workflow, {"solver": solver, "verifier": verifier}, prompt=prompt, tokenizer=REASONING)
    assert solver.heard[0] == "system\nSolve.\nuser\n2+2\nassistant\n<think></think>"
    assert solver.heard[1].endswith("user\nREJECT\nassistant\n<think></think>")
    assert verifier.heard[0] == "system\nJudge.\nuser\n2+2 5?\nassistant\n"
    assert verifier.heard[1].endswith("user\n4?\nassistant\n")


async def test_an_environment_is_entered_with_the_system_prompt() -> None:
    player = Script("5", tokenizer=CHAT)
    workflow = TextEnvironment(environment=GUESSING, chat={"system": "Play."})
    await heard(workflow, {"player": player}, prompt={"number": 5}, tokenizer=CHAT)
    assert player.heard[0].startswith("system\nPlay.\nuser\nGuess")


async def test_text_without_a_template_takes_the_suffix_alone() -> None:
    solver = Script("4")
    workflow = SingleTurn(check="exact", chat={"suffix": "\nAnswer: "})
    await heard(workflow, {"solver": solver}, prompt={"prompt": "2+2?", "answer": "4"}, tokenizer=CHARACTERS)
    assert solver.heard == ["2+2?\nAnswer: "]


@pytest.mark.parametrize(
    ("settings", "tokenizer", "message"),
    [
        ({"system": "Be brief."}, CHARACTERS, "system: the policy's tokenizer has no chat template"),
        ({"enable_thinking": False}, CHAT, "enable_thinking: the chat template"),
        ({"tools": [{"name": "add"}]}, CHAT, "tools: the chat template"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_what_a_template_would_leave_out_is_refused_by_name(
    settings: dict[str, Any], tokenizer: Tokenizer, message: str
) -> None:
    team = Team({"solver": role(EchoSampler(), tokenizer=tokenizer)}, assignment())
    with pytest.raises(WorkflowError, match=message):
        await SingleTurn(chat=settings).run(assignment(prompt="2+2?", answer="4"), team)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sytem": "Be brief."}, "chat.sytem is unknown; there are system, suffix, enable_thinking, tools"),
        ({"enable_thinking": "no"}, "chat.enable_thinking is a str: a bool is needed"),
        ({"tools": ["add"]}, "chat.tools: each is a mapping"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_that_does_not_exist_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SingleTurn(chat=settings)
