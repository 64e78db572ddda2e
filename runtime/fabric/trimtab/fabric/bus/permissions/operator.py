"""The operator makes, follows and deletes what all jobs have on the bus. It publishes no message of its own: it cannot
issue a task, forge a trajectory or move a pointer to weights.
"""

from __future__ import annotations

from trimtab.fabric.bus.rights import Rights, own_inbox
from trimtab.fabric.bus.topology import TASK_CONSUMER


def operator_rights(*, inbox_prefix: str) -> Rights:
    return Rights(
        publish=(
            "$JS.API.STREAM.INFO.*",
            "$JS.API.STREAM.CREATE.*",
            "$JS.API.STREAM.UPDATE.*",
            "$JS.API.STREAM.DELETE.*",
            f"$JS.API.CONSUMER.INFO.*.{TASK_CONSUMER}",
            f"$JS.API.CONSUMER.CREATE.*.{TASK_CONSUMER}",
            "$JS.API.CONSUMER.CREATE.*.*.$KV.>",
            "$JS.API.CONSUMER.MSG.NEXT.*.*",
            "$JS.API.CONSUMER.DELETE.*.*",
        ),
        subscribe=(own_inbox(inbox_prefix),),
    )
