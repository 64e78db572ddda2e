"""Events are for changes, and for each change there is one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from trimtab.api.conditions import Condition, LastError
from trimtab.api.job import RLJobStatus
from trimtab.api.live_settings import LiveSettings
from trimtab.api.trainer import TrainerStatus
from trimtab.operator.reconcile.transitions import transitions

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_ERROR = LastError(time=_NOW, reason="PodFailed", message="boom", pod="p")


def _said(kind: str, status: Any, reason: str = "Why", message: str = "m") -> RLJobStatus:
    condition = Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=_NOW)
    return RLJobStatus(conditions=(condition,))


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        (None, RLJobStatus(), []),
        (_said("Suspended", "False"), _said("Suspended", "True"), ["Suspended"]),
        (_said("Suspended", "True"), _said("Suspended", "False"), ["Resumed"]),
        (_said("Suspended", "True"), _said("Suspended", "True"), []),
        (_said("Succeeded", "Unknown"), _said("Succeeded", "True"), ["Succeeded"]),
        (_said("Succeeded", "True"), _said("Succeeded", "True"), []),
        (_said("Succeeded", "True"), _said("Succeeded", "Unknown"), ["Continued"]),
        (None, _said("Succeeded", "Unknown"), []),
        (RLJobStatus(), RLJobStatus(anchored_anew=1, given_up_groups=7), ["LedgerAnchoredAnew"]),
        (RLJobStatus(anchored_anew=1), RLJobStatus(anchored_anew=1), []),
        (None, _said("Succeeded", "False"), ["Failed"]),
        (_said("Accepted", "True"), _said("Accepted", "False", "NameTaken"), ["NameTaken"]),
        (_said("Accepted", "False", "NameTaken"), _said("Accepted", "False", "NameTaken"), []),
        (_said("Accepted", "False"), _said("Accepted", "False", message="other"), ["NotAccepted"]),
        (RLJobStatus(), RLJobStatus(last_error=_ERROR), ["PodFailed"]),
        (RLJobStatus(last_error=_ERROR), RLJobStatus(last_error=_ERROR), []),
        (RLJobStatus(), RLJobStatus(settings=LiveSettings(max_staleness=8)), []),
        (RLJobStatus(settings=LiveSettings(max_staleness=8)), RLJobStatus(settings=LiveSettings(max_staleness=8)), []),
        (
            RLJobStatus(settings=LiveSettings(max_staleness=8)),
            RLJobStatus(settings=LiveSettings(max_staleness=4)),
            ["SettingsChanged"],
        ),
        (TrainerStatus(), TrainerStatus(restarts=1, attempt=2), ["TrainerRestarted"]),
        (TrainerStatus(restarts=1), TrainerStatus(restarts=1), []),
    ],
)
def test_transitions(before: Any, after: Any, reasons: list[str]) -> None:
    assert [transition.reason for transition in transitions(before, after)] == reasons
