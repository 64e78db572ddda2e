"""Headers of trajectories as they come from the stream; one that cannot be read is logged and never stops the job."""

from __future__ import annotations

import structlog

from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import TrajectoryHeader, parse_headers

_log = structlog.get_logger(__name__)


def header_of(delivery: Delivery) -> tuple[str, TrajectoryHeader] | None:
    """Id and header; None when there is no reading it, in recovery as on arrival, so that both come to the same."""
    try:
        return parse_headers(delivery.headers)
    except WireError as error:
        _log.error("trajectory_unreadable", sequence=delivery.sequence, reason=str(error))
        return None
