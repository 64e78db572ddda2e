"""When an evaluation is due: a pure function of the weights that pools can get."""

from __future__ import annotations

from trimtab.api.evaluation import Evaluation
from trimtab.api.job import RLJobSpec
from trimtab.dataflow.ledger.ledger import Ledger


def is_due(lead: int, *, last_lead: int | None, settings: Evaluation) -> bool:
    """`lead` is the newest published version of any policy, `last_lead` what it was when the latest round began. With
    several policies the one furthest on sets the pace. Rounds that fall behind are passed over, not made up for.
    """
    if last_lead is None:
        return settings.at_start or lead >= settings.every_steps
    return lead // settings.every_steps > last_lead // settings.every_steps


def is_owed(ledger: Ledger, spec: RLJobSpec) -> bool:
    """Whether a round is under way or still to come for what the trainers have done: a job is not over before it."""
    if spec.evaluation is None:
        return False
    if ledger.evaluation.running is not None:
        return True
    publishable = [
        ledger.trainers[policy.name].trained_steps // policy.trainer.publish.every_steps
        * policy.trainer.publish.every_steps
        for policy in spec.policies
    ]  # fmt: skip
    return is_due(max(publishable), last_lead=ledger.evaluation.last_lead, settings=spec.evaluation)
