from __future__ import annotations

import pytest

from trimtab.operator.autoscale.agent.budget import TokenBudget
from trimtab.operator.autoscale.agent.failure import Cause, MaintainerFailed
from trimtab.operator.autoscale.agent.messages import Usage


def test_an_answer_gets_what_reading_leaves() -> None:
    assert TokenBudget(5000).answer_limit(new_bytes=6000) == 3000


def test_an_answer_is_never_very_long() -> None:
    assert TokenBudget(1_000_000).answer_limit(new_bytes=6000) == 8192


def test_the_conversation_so_far_is_read_again() -> None:
    budget = TokenBudget(10_000)
    budget.spend(Usage(input_tokens=2000, output_tokens=500, cache_read_input_tokens=1000))

    assert budget.spent == 3500
    assert budget.answer_limit(new_bytes=300) == 10_000 - 3500 - 3500 - 100


def test_a_request_that_would_not_fit_is_not_sent() -> None:
    budget = TokenBudget(10_000)
    budget.spend(Usage(input_tokens=4000, output_tokens=900))

    with pytest.raises(MaintainerFailed, match="4900 of 10000 tokens are spent, .* need about 5256") as failed:
        budget.answer_limit(new_bytes=300)
    assert failed.value.cause is Cause.BUDGET


def test_a_budget_that_is_overdrawn() -> None:
    budget = TokenBudget(10_000)
    budget.spend(Usage(input_tokens=10**9, output_tokens=0))

    with pytest.raises(MaintainerFailed):
        budget.answer_limit(new_bytes=0)
