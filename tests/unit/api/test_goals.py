"""Which change of the manifest makes a job that has ended go on."""

from __future__ import annotations

import pytest

from trimtab.api.goals import Goals, raised


@pytest.mark.parametrize(
    ("wanted", "reached", "goes_on"),
    [
        pytest.param({"max_steps": 20}, {"max_steps": 10}, True, id="more steps"),
        pytest.param({"max_steps": 10}, {"max_steps": 10}, False, id="as it was"),
        pytest.param({"max_steps": 5}, {"max_steps": 10}, False, id="fewer"),
        pytest.param({"target_reward": 0.9}, {"target_reward": 0.8}, True, id="a higher reward"),
        pytest.param({"epochs": 2}, {"epochs": 1}, True, id="the prompts once more"),
        pytest.param({"max_steps": 10, "target_reward": 0.9}, {"max_steps": 10}, False, id="a goal more"),
        pytest.param({"max_steps": 10}, {"max_steps": 10, "target_reward": 0.9}, True, id="one that is gone"),
        pytest.param({"max_steps": 20, "target_reward": 0.1}, {"max_steps": 10, "target_reward": 0.9}, True, id="one"),
    ],
)
def test_more_than_was_reached(wanted: dict[str, float], reached: dict[str, float], goes_on: bool) -> None:
    assert raised(Goals.model_validate(wanted), Goals.model_validate(reached)) is goes_on


def test_where_nothing_was_written_down_all_was_reached() -> None:
    assert not raised(Goals(max_steps=20), None)
