"""Corrections are tested with the real SDK in tests/integration/operator/agent; here is what needs no conversation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agent.cases import case
from trimtab.operator.autoscale.agent.messages import ToolCall
from trimtab.operator.autoscale.agent.proposal import AgentProposal, Cause
from trimtab.operator.autoscale.agent.tools import TOOLS, ToolServer, tool_params


def propose(**changes: Any) -> ToolCall:
    return ToolCall(id="toolu_1", name="propose", input={"targets": [], "reason": "Enough.", **changes})


def test_no_targets_mean_no_change() -> None:
    served = ToolServer(case()).serve([propose()])

    assert served.proposal == AgentProposal(targets={"home": 4, "spot": 2}, victims=(), reason="Enough.")


def test_a_victim_named_twice_is_one_victim() -> None:
    served = ToolServer(case()).serve([propose(victims=["math-spot-1", "math-home-0", "math-spot-1"])])

    assert served.proposal is not None
    assert served.proposal.victims == ("math-spot-1", "math-home-0")


def test_a_proposal_beside_other_calls_counts() -> None:
    served = ToolServer(case()).serve([ToolCall(id="toolu_0", name="read_report", input={}), propose()])

    assert [result["tool_use_id"] for result in served.results] == ["toolu_0", "toolu_1"]
    assert served.proposal is not None
    assert served.misuse is None


def test_one_wrong_proposal_beside_a_right_one_is_still_two() -> None:
    wrong = ToolCall(id="toolu_2", name="propose", input={})

    served = ToolServer(case()).serve([propose(), wrong])

    assert served.proposal is None
    assert served.misuse is Cause.MALFORMED_INPUT


def test_corrections_are_short() -> None:
    served = ToolServer(case()).serve([ToolCall(id="toolu_1", name="x" * 10_000, input={})])

    content = served.results[0]["content"]
    assert isinstance(content, str)
    assert len(content) < 300


def test_tools_say_what_they_are_for_and_what_they_take() -> None:
    params = {param["name"]: param for param in tool_params()}

    assert params.keys() == TOOLS.keys()
    for param in params.values():
        schema: dict[str, Any] = dict(param["input_schema"])
        assert param["description"]
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert all(field.get("description") for field in schema["properties"].values())
    assert params["propose"]["input_schema"]["required"] == ["targets", "reason"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("namespace", "../etc"), ("job", "a/b"), ("job", ""), ("decision_id", "UPPER"), ("decision_id", "x" * 65)],
)
def test_a_case_has_names_that_can_be_folders(field: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: "):
        case(**{field: value})
