"""What code of the user's may do in a stage besides looking at rows: converse with the policy that the stage asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.rollout.speakers import EchoSampler, role
from tests.support.rollout.staged_job import row
from trimtab.api.stage import Stage
from trimtab.api.workflow import Workflow
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.stage import StageRow as Asked
from trimtab.fabric.wire.stage import StageTask
from trimtab.rollout.stages.contract import StageContext, StageRow
from trimtab.rollout.stages.group import GroupRow, StageGroup
from trimtab.rollout.stages.plugin import PluginCalls, load_plugin
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.containment import Containment

LETTERS = Tokenizer(encode=lambda text: [ord(one) for one in text], decode=lambda ids: "".join(map(chr, ids)))


class Asks:
    async def compute(self, row: StageRow, context: StageContext) -> float:
        assert context.team is not None
        conversation = context.team.begin()
        conversation.hear("ab")
        return float(await conversation.speak() == "ba")


class OfAll:
    async def compute(self, rows: Sequence[StageRow], context: StageContext) -> list[bool]:
        assert context.team is None
        return [row.answer == context.prompt["answer"] for row in rows]


class NoCoroutine:
    def compute(self, rows: Sequence[StageRow], context: StageContext) -> list[bool]:
        return []


def group() -> StageGroup:
    rows = [row("g", 0, answer="4"), row("g", 1, answer="5")]
    task = StageTask(
        job="j",
        stage="own",
        policy="solver",
        group_id="g",
        prompt_id="p",
        prompt={"answer": "4"},
        rows=tuple(Asked(sequence=n, trajectory_id=one.trajectory_id, reward=0.0) for n, one in enumerate(rows, 1)),
        created_at=1.0,
    )
    return StageGroup(task=task, rows=tuple(GroupRow(trajectory=one, reward=0.0, columns={}) for one in rows))


async def test_a_judge_converses_with_the_policy_of_its_stage() -> None:
    calls = PluginCalls(
        Asks(), Containment(), per="Row", tokenizers={"solver": LETTERS}, role=role(EchoSampler()), seed=0
    )
    assert await calls.said(group(), deadline_s=10.0) == [1.0, 1.0]


async def test_without_a_policy_there_is_nobody_to_ask() -> None:
    calls = PluginCalls(OfAll(), Containment(), per="Group", tokenizers={"solver": LETTERS}, role=None, seed=0)
    assert await calls.said(group(), deadline_s=10.0) == [True, False]


@pytest.mark.parametrize(
    ("entrypoint", "why"),
    [
        (f"{__name__}:NoCoroutine", "has no `async def compute"),
        ("nowhere:Own", "stages\\[own\\].plugin.entrypoint 'nowhere:Own' cannot be loaded"),
    ],
)
def test_what_is_no_plugin_is_refused_by_field(entrypoint: str, why: str) -> None:
    stage = Stage.model_validate({"name": "own", "computes": "Filter", "plugin": {"entrypoint": entrypoint}})
    with pytest.raises(JobMisconfigured, match=why):
        load_plugin(stage, Workflow.model_validate({"entrypoint": "a:B"}), folder=Path())
