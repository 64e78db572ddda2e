"""When a policy has had enough: its steps are done, or its reward is reached."""

from __future__ import annotations

from trimtab.api.job import RLJobSpec
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import PolicyFinished


def finish(ledger: Ledger, policy: str, *, spec: RLJobSpec) -> PolicyFinished | None:
    """The record that ends a policy, as soon as its trainer asks for a step it does not need."""
    books = ledger.policies[policy]
    if books.finished is not None:
        return None
    if spec.max_steps is not None and books.next_step >= spec.max_steps and books.trained_steps >= spec.max_steps:
        return PolicyFinished(policy=policy, reason=f"maxSteps {spec.max_steps} done")
    recent = books.rewards[-spec.autoscaling.window_steps :]
    if (
        spec.target_reward is not None
        and len(recent) == spec.autoscaling.window_steps
        and books.trained_steps >= books.next_step
        and sum(recent) / len(recent) >= spec.target_reward
    ):
        return PolicyFinished(policy=policy, reason=f"targetReward {spec.target_reward} reached")
    return None
