"""`python -m tests.support.fabric.scan`: one line for each role, as its user and as its account alone; exit 1 when more
worked than the table in docs/security.md says.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.support.fabric.scan.scanner import Site, scan
from tests.support.fabric.scan.targets import SECURITY, documented
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.users.accounts import ROLE_ACCOUNTS
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.settings import LogSettings


async def _scanned(server: EmbeddedNatsWithAccounts) -> int:
    told = documented(SECURITY.read_text("utf-8"))
    beyond = 0
    for role in ROLE_ACCOUNTS:
        for alone in (False, True):
            async with Site.opened(server, name=f"{role}-{int(alone)}") as site:
                worked = await scan(site, role, alone=alone)
            more, less = sorted(worked - told[role]), sorted(told[role] - worked)
            beyond += len(more)
            who = f"{role}'s account alone" if alone else role
            said = f"{len(worked)} things worked, {len(more)} beyond the table"
            parts = [f"{who}: {said}", *(f"MORE {one}" for one in more), *(f"less {one}" for one in less)]
            sys.stdout.write("; ".join(parts) + "\n")
    return beyond


def main() -> None:
    configure_logs(LogSettings(level="error"), stream=sys.stderr, secrets=())
    with tempfile.TemporaryDirectory() as folder, EmbeddedNatsWithAccounts(Path(folder) / "nats") as server:
        beyond = asyncio.run(_scanned(server))
    sys.exit(1 if beyond else 0)


if __name__ == "__main__":
    main()
