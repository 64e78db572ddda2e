"""The operator is killed again and again while jobs change: nothing is started twice, no deletion is lost, and in the
end everything is as asked. It has the rights of the namespaced Role and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cluster.operator.kill_run import run_kills
from trimtab.embedded.kube.control_plane import ControlPlane


async def test_kills_leave_no_trace(
    start_control_plane: Callable[[], ControlPlane], servers: dict[str, str], tmp_path: Path
) -> None:
    await run_kills(start_control_plane(), servers, folder=tmp_path, kills=8, seed=1)
