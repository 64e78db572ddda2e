"""What a job says that a loss of power would cost."""

from __future__ import annotations

import pytest

from trimtab.operator.plan.durability import Durability, SyncInterval


@pytest.mark.parametrize(
    ("replicas", "sync", "holds", "reason", "said"),
    [
        (1, "always", True, "Synced", "the loss of its disk costs them, and a loss of power costs nothing"),
        (1, 5.0, False, "SyncedLater", "what was acknowledged in the last 5 s may be lost; set sync_interval: always"),
        (1, None, None, "SyncUnknown", "which is not known here"),
        (3, "always", True, "Replicated", "at once, nothing that was acknowledged is lost"),
        (
            3,
            5.0,
            True,
            "Replicated",
            "the loss of one, with its disk, costs nothing; when all lose their power at once",
        ),
        (5, None, True, "Replicated", "on 5 servers"),
    ],
)
def test_what_a_loss_costs(
    replicas: int, sync: SyncInterval | None, holds: bool | None, reason: str, said: str
) -> None:
    statement = Durability(replicas=replicas, sync=sync).statement()
    assert (statement.holds, statement.reason) == (holds, reason)
    assert said in statement.message
