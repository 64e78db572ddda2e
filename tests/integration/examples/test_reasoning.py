"""The example's manifest with a tiny model that answers with 36 tokens: answers span versions, and none is cut in
silence.
"""

from __future__ import annotations

import asyncio

import pytest
import yaml

from examples.curves.running import follow_manifest, variants, write_manifest
from examples.largest_digit import write_rows
from tests.support.learning.digit_chains import chains
from tests.support.learning.small_reasoner import ASKED, STEPS, make_reasoner
from tests.support.polling import patiently
from trimtab.fabric.wire.header import TrajectoryHeader
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.trajectory import Finish

pytestmark = pytest.mark.slow

_TRAINER_STEPS = 30
_HELD_OUT = 24
_TIMEOUT_S = 280.0
_RATE = 3e-4


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[TrajectoryHeader]:
    """All that were trained on."""
    folder = tmp_path_factory.mktemp("reasoning")
    make_reasoner(folder / "model", seed=0)
    rows = [made.row for made in chains(500, steps=STEPS, seed=0)]
    write_rows(rows[:_HELD_OUT], folder / "held-out.jsonl")
    write_rows(rows[_HELD_OUT:], folder / "train.jsonl")
    file = write_manifest(variants("reasoning")["job"], folder, seed=0, steps=_TRAINER_STEPS)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["workflow"]["args"] = {"check": "exact", "chat": {"suffix": ASKED}}
    (policy,) = manifest["spec"]["policies"]
    policy["algorithm"]["optimizer"]["learningRate"] = _RATE
    policy["sampling"].pop("stop")
    manifest["spec"]["evaluation"]["everySteps"] = _TRAINER_STEPS
    manifest["spec"]["evaluation"]["benchmarks"][0]["sampling"].pop("stop")
    file.write_text(yaml.safe_dump(manifest))

    async def in_time() -> list[TrajectoryHeader]:
        async with patiently(_TIMEOUT_S):
            followed = await follow_manifest(file)
        return [header for header in followed.headers if header.purpose is Purpose.TRAIN]

    return asyncio.run(in_time())


def test_answers_are_long_and_span_versions(answers: list[TrajectoryHeader]) -> None:
    ended = [answer for answer in answers if answer.finish is Finish.STOP]
    assert len(ended) > 0.9 * len(answers)
    assert sum(answer.trained_tokens >= 32 for answer in ended) > 0.9 * len(ended)
    assert any(answer.oldest_version != answer.newest_version for answer in answers)


def test_an_answer_that_was_cut_says_so(answers: list[TrajectoryHeader]) -> None:
    """Of what is trained, everything that has as many tokens as are allowed and did not stop is marked as cut."""
    limit = 48
    assert all(answer.trained_tokens <= limit for answer in answers)
    for answer in answers:
        assert answer.finish in (Finish.STOP, Finish.LENGTH)
        assert (answer.finish is Finish.LENGTH) <= (answer.trained_tokens == limit)
