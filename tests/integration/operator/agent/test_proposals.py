"""What a model can achieve: look around, propose, and be corrected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.asking import Asked
from tests.support.agent.messages_server import (
    Answer,
    MessagesServer,
    Request,
    call,
    follow_formula,
    in_turn,
    message,
    text,
)
from trimtab.operator.autoscale.agent.conversation import MAX_ROUNDS
from trimtab.operator.autoscale.agent.proposal import Cause, MaintainerFailed

GOOD = call("propose", targets=[{"pool": "spot", "replicas": 4}], victims=["math-home-3"], reason="w is 0.2.")


async def test_a_model_that_follows_the_formula(server: MessagesServer, asked: Asked, tmp_path: Path) -> None:
    server.script = follow_formula

    outcome = await asked()

    assert outcome.proposal.targets == {"home": 4, "spot": 4}
    assert outcome.proposal.replicas == 8
    assert outcome.proposal.reason == "As the formula says."
    first, second = server.requests
    assert [tool["name"] for tool in first.body["tools"]] == [
        "read_report",
        "read_history",
        "list_instances",
        "propose",
    ]
    report, history, instances = (json.loads(result["content"]) for result in second.tool_results)
    assert report["reports"][0]["wait_fraction"] == 0.2
    assert [row["wait_fraction"] for row in history["earlier_reports"]] == [0.15, 0.1]
    assert [one["id"] for one in instances["instances"]][:3] == ["math-home-3", "math-home-2", "math-home-1"]
    transcript = json.loads((tmp_path / outcome.transcript).read_text())
    assert (
        transcript["tokens"]
        == outcome.tokens
        == sum(each["usage"]["input_tokens"] + each["usage"]["output_tokens"] for each in transcript["exchanges"])
    )
    assert transcript["outcome"]["targets"] == {"home": 4, "spot": 4}
    assert transcript["messages"][:-1] == second.messages


async def test_pools_that_are_not_mentioned_stay_and_victims_are_ids(server: MessagesServer, asked: Asked) -> None:
    server.script = in_turn([message(text("At once."), GOOD)])

    outcome = await asked()

    assert outcome.proposal.targets == {"home": 4, "spot": 4}
    assert outcome.proposal.victims == ("math-home-3",)


async def test_thinking_goes_back_unchanged(server: MessagesServer, asked: Asked) -> None:
    thinking = {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"}
    newer = {"type": "a_block_of_next_year", "payload": {"x": [1, 2.5, None]}}
    server.script = in_turn([message(thinking, newer, call("read_report")), message(GOOD)])

    await asked()

    assert server.requests[1].messages[1]["content"][:2] == [thinking, newer]


async def test_what_the_manifest_adds_is_in_the_instructions(server: MessagesServer, asked: Asked) -> None:
    server.script = in_turn([message(GOOD)])

    await asked(prompt_additions="Spot nodes vanish at noon. ")

    assert server.requests[0].body["system"].endswith("add:\nSpot nodes vanish at noon.")


MISUSES = {
    "wrong type": (
        call("propose", targets=[{"pool": "spot", "replicas": "4"}], reason="r"),
        "replicas: Input should be",
    ),
    "fraction": (call("propose", targets=[{"pool": "spot", "replicas": 3.5}], reason="r"), "replicas: Input should be"),
    "negative": (call("propose", targets=[{"pool": "spot", "replicas": -1}], reason="r"), "greater than or equal to 0"),
    "boolean": (call("propose", targets=[{"pool": "spot", "replicas": True}], reason="r"), "replicas: Input should be"),
    "no reason": (call("propose", targets=[]), "reason: Field required"),
    "empty reason": (call("propose", targets=[], reason="\u200b\n"), "no printable character"),
    "long reason": (call("propose", targets=[], reason="r" * 2049), "at most 2048"),
    "more than there is": (call("propose", targets=[], reason="r", sudo=True), "sudo: Extra inputs"),
    "unknown pool": (call("propose", targets=[{"pool": "gpu", "replicas": 1}], reason="r"), "'gpu' is not one of"),
    "pool twice": (call("propose", targets=[{"pool": "spot", "replicas": 1}] * 2, reason="r"), "occurs twice"),
    "unknown victim": (
        call("propose", targets=[], victims=["kube-apiserver"], reason="r"),
        "'kube-apiserver' is not an",
    ),
    "unknown policy": (call("read_report", policy="critic"), "'critic' is not one of"),
    "unknown tool": (call("kubectl", command="delete"), "there is no tool 'kubectl'"),
    "input is no object": ({**call("read_report"), "input": [1]}, "input: "),
}


@pytest.mark.parametrize(("misuse", "correction"), MISUSES.values(), ids=MISUSES)
async def test_misuse_is_corrected_and_the_next_call_counts(
    server: MessagesServer, asked: Asked, misuse: dict[str, Any], correction: str
) -> None:
    server.script = in_turn([message(misuse, call("read_history")), message(GOOD)])

    outcome = await asked()

    wrong, right = server.requests[1].tool_results
    assert wrong["is_error"] is True
    assert correction in wrong["content"]
    assert "is_error" not in right
    assert outcome.proposal.targets == {"home": 4, "spot": 4}


async def test_of_two_proposals_none_counts(server: MessagesServer, asked: Asked) -> None:
    twice = message(call("propose", targets=[], reason="hold"), call("propose", targets=[], reason="hold"))
    server.script = in_turn([twice, message(GOOD)])

    outcome = await asked()

    assert [result["is_error"] for result in server.requests[1].tool_results] == [True, True]
    assert outcome.proposal.reason == "w is 0.2."


@pytest.mark.parametrize(
    ("endless", "cause"),
    [
        ([call("read_report")], Cause.TOO_MANY_ROUNDS),
        ([MISUSES["wrong type"][0]], Cause.MALFORMED_INPUT),
        ([MISUSES["unknown victim"][0]], Cause.UNKNOWN_NAME),
        ([MISUSES["unknown tool"][0]], Cause.UNKNOWN_TOOL),
        ([GOOD, {**GOOD, "id": "toolu_other"}], Cause.SEVERAL_PROPOSALS),
    ],
    ids=lambda value: value.name if isinstance(value, Cause) else "",
)
async def test_a_model_that_never_learns(
    server: MessagesServer, asked: Asked, endless: list[dict[str, Any]], cause: Cause
) -> None:
    server.script = in_turn([message(*endless, usage={"input_tokens": 10, "output_tokens": 10})])

    with pytest.raises(MaintainerFailed) as failed:
        await asked()

    assert failed.value.cause is cause
    assert len(server.requests) == MAX_ROUNDS
    assert failed.value.tokens == 20 * MAX_ROUNDS
    last_call = server.requests[-1].messages[-1]["content"][-1]
    assert last_call["type"] == "text"
    assert "call propose now" in last_call["text"]


async def test_tokens_are_summed_over_the_decision_and_bound_each_answer(server: MessagesServer, asked: Asked) -> None:
    cached = {
        "input_tokens": 100,
        "output_tokens": 400,
        "cache_creation_input_tokens": 1500,
        "cache_read_input_tokens": 2000,
    }
    server.script = in_turn([message(call("read_history"), usage=cached)])

    with pytest.raises(MaintainerFailed, match="raise agent.maxTokens") as failed:
        await asked(max_tokens=20_000)

    assert failed.value.cause is Cause.BUDGET
    assert failed.value.tokens == 4000 * len(server.requests)
    spent = 0
    for request in server.requests:
        assert 0 < request.body["max_tokens"] <= 20_000 - spent
        spent += 4000
    assert spent <= 20_000


async def test_a_second_decision_starts_from_nothing(server: MessagesServer, asked: Asked) -> None:
    def script(request: Request) -> Answer:
        return follow_formula(request)

    server.script = script
    first, second = await asked(), await asked()

    assert first.tokens == second.tokens
    assert len(server.requests) == 4
