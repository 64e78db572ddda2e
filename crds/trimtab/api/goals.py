"""What a job is to reach, and whether it is more than it was: then a job that has ended goes on."""

from __future__ import annotations

from trimtab.api.model import ApiModel
from trimtab.api.scalars import PositiveCount


class Goals(ApiModel):
    """What ends a job, as it was in the manifest at some moment."""

    max_steps: PositiveCount | None = None
    """Of spec.maxSteps."""
    target_reward: float | None = None
    """Of spec.targetReward."""
    epochs: PositiveCount | None = None
    """Of spec.data.epochs."""


def raised(wanted: Goals, reached: Goals | None) -> bool:
    """Whether a job that has reached those goals has more to do: one of them is higher now, or no longer there. A goal
    that was added can only end a job earlier. Where nothing is known of what was reached, all of it was.
    """
    if reached is None:
        return False
    pairs = (
        (wanted.max_steps, reached.max_steps),
        (wanted.target_reward, reached.target_reward),
        (wanted.epochs, reached.epochs),
    )
    return any(old is not None and (new is None or new > old) for new, old in pairs)
