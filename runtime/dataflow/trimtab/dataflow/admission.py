"""How many more prompt groups may be in flight, so that nothing sampled now is too stale when it is trained."""

from __future__ import annotations


def capacity(*, max_staleness: int, version: int, batch_size: int, accepted: int, running: int) -> int:
    """Samples that may still be asked for. `accepted` counts all that were ever taken and not given up, `running` those
    asked for and not arrived: the sample that is asked for last will be trained at version accepted / batch_size at the
    latest, which must not exceed the current version by more than the bound.
    """
    return max(0, (max_staleness + version + 1) * batch_size - (accepted + running))
