"""What `trimtab balance` says of a report: the zone, and what the configured maintainer makes of it."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console, Group

from tests.support.agent.cases import report
from trimtab.cli.balance import rendered
from trimtab.fabric.wire.balance import StageLoad


@pytest.mark.parametrize(
    ("maintainer", "target", "said"),
    [
        ("ThreeZone", 8, "zone grow, 6 instances; ThreeZone asks for 8"),
        ("Trim", None, "zone grow, 6 instances; Trim decides by more than one report: kubectl get rlj math"),
    ],
)
def test_it_speaks_for_the_configured_maintainer(maintainer: str, target: int | None, said: str) -> None:
    console = Console(width=200)
    shown = msgspec.structs.replace(report(), maintainer=maintainer, target=target)
    with console.capture() as captured:
        console.print(Group(*rendered(shown)))
    assert said in captured.get()
    assert ("asks for" in captured.get()) is (target is not None)


def test_a_stage_has_a_line_of_its_own() -> None:
    console = Console(width=200)
    loads = (StageLoad(stage="judge", waiting=7, done=40, failed=2),)
    shown = msgspec.structs.replace(report(), stages=loads, wall_seconds=20.0)
    with console.capture() as captured:
        console.print(Group(*rendered(shown)))
    (line,) = [line.split() for line in captured.get().splitlines() if line.startswith("judge")]
    assert line == ["judge", "2.0", "7", "2"]
