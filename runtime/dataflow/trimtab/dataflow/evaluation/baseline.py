"""The weights that policies start from are evaluated before any step is granted: workers swap to newer weights as they
come, so later answers would be of those. Rollouts for training go on meanwhile, as far as admission allows.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from trimtab.api.job import RLJobSpec
from trimtab.dataflow.ledger.ledger import Ledger

_log = structlog.get_logger(__name__)
# With no pool alive the first evaluation would never come, and the job would never begin.
_LONGEST_S = 900.0


class Baseline:
    """Says whether the first step is to wait for the first round. `clock` never goes back."""

    def __init__(self, spec: RLJobSpec, *, clock: Callable[[], float]) -> None:
        self._spec = spec
        self._clock = clock
        self._since: float | None = None
        self._given_up = False

    def __call__(self, ledger: Ledger) -> bool:
        if self._given_up or not is_awaited(ledger, self._spec):
            return False
        now = self._clock()
        if self._since is None:
            self._since = now
            _log.info("first_evaluation_awaited")
        if now - self._since >= _LONGEST_S:
            self._given_up = True
            _log.warning("first_evaluation_not_awaited_any_longer", after_s=_LONGEST_S)
        return not self._given_up


def is_awaited(ledger: Ledger, spec: RLJobSpec) -> bool:
    if spec.evaluation is None or not spec.evaluation.at_start:
        return False
    if any(trainer.next_step or trainer.granted for trainer in ledger.trainers.values()):
        return False
    return ledger.evaluation.last_lead is None or ledger.evaluation.running is not None
