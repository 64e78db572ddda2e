"""What the workflows of programs refuse before the first episode."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.solver_selector import SolverSelector
from trimtab.rollout.workflows.solver_tests import SolverTests


@pytest.mark.parametrize(
    ("workflow", "arguments", "why"),
    [
        (SolverSelector, {"candidates": 1}, "candidates is 1: at least 2"),
        (SolverTests, {"candidates": 0}, "candidates is 0: at least 1"),
        (SolverTests, {"retries": -1}, "retries is -1: at least 0"),
        (SolverTests, {"writer_reward": "best"}, "writer_reward is 'best': it is separation or outcome"),
        (SolverTests, {"check_args": {"score": "some"}}, "check_args.score is 'some': it is all or share"),
        (SolverTests, {"check_args": {"on_timeout": 0}}, "check_args: got an unexpected keyword argument"),
        (SolverTests, {"check_args": {"template": "x"}}, "check_args.template lacks {code}"),
        (SingleTurn, {"check": "tests", "check_args": {"timeout_s": 0}}, "check_args.timeout_s is 0"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    workflow: Callable[..., object], arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        workflow(**arguments)
