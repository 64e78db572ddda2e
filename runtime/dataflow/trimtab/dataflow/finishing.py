"""When a policy has had enough: its steps are done, its reward is reached, or there are no prompts left."""

from __future__ import annotations

from trimtab.api.job import RLJobSpec
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import PolicyFinished


def finish(ledger: Ledger, policy: str, *, spec: RLJobSpec, total_prompts: int | None) -> PolicyFinished | None:
    """The record that ends a policy, once its trainer asks for a step that it does not need or that can never come.

    `total_prompts` is how many there will ever be, None for no end.
    """
    books = ledger.trainers[policy]
    if books.finished is not None or books.trained_steps < books.next_step:
        return None
    if spec.max_steps is not None and books.next_step >= spec.max_steps:
        return PolicyFinished(policy=policy, reason=f"maxSteps {spec.max_steps} done")
    # The deque is as long as the window.
    if (
        spec.target_reward is not None
        and len(books.rewards) == spec.autoscaling.window_steps
        and sum(books.rewards) / len(books.rewards) >= spec.target_reward
    ):
        return PolicyFinished(policy=policy, reason=f"targetReward {spec.target_reward} reached")
    if (
        total_prompts is not None
        and ledger.next_position >= total_prompts
        and all(ledger.under_way(stream) <= 0 for stream in books.buffers)
        and not ledger.can_grant(policy)
    ):
        return PolicyFinished(policy=policy, reason=f"data.epochs {spec.data.epochs} done: too few groups for a batch")
    return None
