"""What `trimtab balance` says of a report: the zone, and what the configured maintainer makes of it."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console, Group

from tests.support.agent.cases import report
from trimtab.cli.balance import rendered


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
