"""When a policy has had enough: its steps are done, its reward is reached, or there are no prompts left. And when it is
to go on, because the manifest asks for more than it has reached.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from trimtab.api.job import RLJobSpec
from trimtab.dataflow.evaluation.evaluator import is_owed
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import PolicyContinued, PolicyFinished
from trimtab.dataflow.ledger.trainer_books import TrainerBooks

_log = structlog.get_logger(__name__)
# With no pool alive the last evaluation would never come, and the job would never end.
_LAST_EVALUATION_S = 900.0


class Finisher:
    """Ends policies, but not before the evaluation of what they learnt: with the last trainer the pools go."""

    def __init__(self, spec: RLJobSpec, *, total_prompts: int | None, clock: Callable[[], float]) -> None:
        self._spec = spec
        self._total_prompts = total_prompts
        self._clock = clock
        self._held_since: dict[str, float] = {}

    def __call__(self, ledger: Ledger, policy: str) -> PolicyFinished | None:
        record = finish(ledger, policy, spec=self._spec, total_prompts=self._total_prompts)
        if record is None or not is_owed(ledger, self._spec, is_last=self.is_last(ledger)):
            return record
        now = self._clock()
        if policy not in self._held_since:
            self._held_since[policy] = now
            _log.info("last_evaluation_awaited", policy=policy)
        if now - self._held_since[policy] < _LAST_EVALUATION_S:
            return None
        _log.warning("last_evaluation_given_up", policy=policy, after_s=_LAST_EVALUATION_S)
        return record

    def is_last(self, ledger: Ledger) -> bool:
        """Whether every policy has finished, or would now but for an evaluation."""
        return all(
            books.finished is not None or self.has_had_enough(ledger, name) for name, books in ledger.trainers.items()
        )

    def has_had_enough(self, ledger: Ledger, policy: str) -> bool:
        """Whether only an evaluation keeps it. Each step that it were granted now would owe another one."""
        return finish(ledger, policy, spec=self._spec, total_prompts=self._total_prompts) is not None


def finish(ledger: Ledger, policy: str, *, spec: RLJobSpec, total_prompts: int | None) -> PolicyFinished | None:
    """The record that ends a policy, once its trainer asks for a step that it does not need or that can never come.

    `total_prompts` is how many there will ever be, None for no end.
    """
    books = ledger.trainers[policy]
    if books.finished is not None or books.trained_steps < books.next_step:
        return None
    if (reached := _reached(books, spec)) is not None:
        return PolicyFinished(policy=policy, reason=reached)
    if (
        total_prompts is not None
        and ledger.next_position >= total_prompts
        and all(ledger.under_way(stream) <= 0 for stream in books.buffers)
        and not ledger.can_grant(policy)
    ):
        return PolicyFinished(policy=policy, reason=f"data.epochs {spec.data.epochs} done: too few groups for a batch")
    return None


def continued(ledger: Ledger, *, spec: RLJobSpec, total_prompts: int | None) -> list[PolicyContinued]:
    """Of the policies that have finished, those that are to reach more by now and that there are prompts for."""
    if total_prompts is not None and ledger.next_position >= total_prompts:
        return []
    return [
        PolicyContinued(policy=books.policy)
        for books in ledger.trainers.values()
        if books.finished is not None and _reached(books, spec) is None
    ]


def _reached(books: TrainerBooks, spec: RLJobSpec) -> str | None:
    """The goal that the policy has reached, in words."""
    if spec.max_steps is not None and books.next_step >= spec.max_steps:
        return f"maxSteps {spec.max_steps} done"
    # The deque is as long as the window.
    if (
        spec.target_reward is not None
        and len(books.rewards) == spec.autoscaling.window_steps
        and sum(books.rewards) / len(books.rewards) >= spec.target_reward
    ):
        return f"targetReward {spec.target_reward} reached"
    return None
