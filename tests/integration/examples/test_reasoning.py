"""The example's manifest with a tiny model that answers with 36 tokens, and the default type of weights: it learns on
answers that span versions, engine and trainer agree, and no answer is cut in silence.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from examples.curves.measuring import policy_curves
from examples.curves.record import PolicyCurve
from examples.curves.running import follow_manifest, variants, write_manifest
from examples.largest_digit import write_rows
from tests.support.learning.digit_chains import chains
from tests.support.learning.small_reasoner import ASKED, STEPS, make_reasoner
from tests.support.polling import patiently
from tests.support.quickstart_job import logged_steps
from trimtab.fabric.wire.header import TrajectoryHeader
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.trajectory import Finish

pytestmark = pytest.mark.slow

_TRAINER_STEPS = 60
_HELD_OUT = 48
_TIMEOUT_S = 400.0
_RATE = 1.5e-4
_AGREED = 1e-3
"""Both compute in float32, with weights that are rounded alike."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    curve: PolicyCurve
    answers: list[TrajectoryHeader]
    log: list[dict[str, Any]]
    """Of each step."""


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    folder = tmp_path_factory.mktemp("reasoning")
    make_reasoner(folder / "model", seed=0)
    rows = [made.row for made in chains(500, steps=STEPS, seed=0)]
    write_rows(rows[:_HELD_OUT], folder / "held-out.jsonl")
    write_rows(rows[_HELD_OUT:], folder / "train.jsonl")
    file = write_manifest(variants("reasoning")["job"], folder, seed=0, steps=_TRAINER_STEPS)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["workflow"]["args"] = {"check": "exact", "chat": {"suffix": ASKED}}
    (policy,) = manifest["spec"]["policies"]
    assert "dtype" not in policy["trainer"], "it is the default that is to learn"
    policy["algorithm"]["optimizer"]["learningRate"] = _RATE
    policy["sampling"].pop("stop")
    manifest["spec"]["evaluation"]["everySteps"] = _TRAINER_STEPS
    manifest["spec"]["evaluation"]["benchmarks"][0]["sampling"].pop("stop")
    file.write_text(yaml.safe_dump(manifest))

    async def in_time() -> Lesson:
        async with patiently(_TIMEOUT_S):
            followed = await follow_manifest(file)
        return Lesson(
            curve=policy_curves(followed.headers, followed.records)["solver"],
            answers=[header for header in followed.headers if header.purpose is Purpose.TRAIN],
            log=logged_steps(file),
        )

    return asyncio.run(in_time())


def test_the_default_settings_learn_it(lesson: Lesson) -> None:
    first, *_, last = lesson.curve.scores["held-out"]
    assert last.version >= _TRAINER_STEPS - 2
    assert last.score > first.score + 0.25, lesson.curve


def test_answers_are_long_and_span_versions(lesson: Lesson) -> None:
    ended = [answer for answer in lesson.answers if answer.finish is Finish.STOP]
    assert len(ended) > 0.9 * len(lesson.answers)
    assert sum(answer.trained_tokens >= 32 for answer in ended) > 0.9 * len(ended)
    assert any(answer.oldest_version != answer.newest_version for answer in lesson.answers)


def test_engine_and_trainer_agree_on_every_step(lesson: Lesson) -> None:
    figures = [step["logprob_mismatch"] for step in lesson.log]
    assert len(figures) == _TRAINER_STEPS
    measured = [figure for figure in figures if figure is not None]
    assert len(measured) >= _TRAINER_STEPS - 2, "it stands from the first rows that a published version sampled"
    assert max(measured) < _AGREED


def test_an_answer_that_was_cut_says_so(lesson: Lesson) -> None:
    """Of what is trained, everything that has as many tokens as are allowed and did not stop is marked as cut."""
    limit = 56
    assert all(answer.trained_tokens <= limit for answer in lesson.answers)
    for answer in lesson.answers:
        assert answer.finish in (Finish.STOP, Finish.LENGTH)
        assert (answer.finish is Finish.LENGTH) <= (answer.trained_tokens == limit)
