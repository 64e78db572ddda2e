"""What worked when every role tried everything is what docs/security.md says, to the letter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fabric.account_users import stream_names
from tests.support.fabric.scan.scanner import Site, scan
from tests.support.fabric.scan.targets import SECURITY, documented
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.users.accounts import JOB, ROLE_ACCOUNTS


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNatsWithAccounts]:
    with EmbeddedNatsWithAccounts(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.mark.parametrize(
    ("role", "alone"),
    [
        pytest.param(role, alone, marks=() if (role, alone) == ("rollout", True) else pytest.mark.slow)
        for role in ROLE_ACCOUNTS
        for alone in (False, True)
    ],
    ids=lambda value: {False: "as its user", True: "by its account alone"}.get(value, value),
)
async def test_a_role_can_do_what_the_table_says_and_nothing_else(
    nats: EmbeddedNatsWithAccounts, role: str, alone: bool
) -> None:
    async with Site.opened(nats, name=f"{role}-{int(alone)}") as site:
        assert await scan(site, role, alone=alone) == documented(SECURITY.read_text("utf-8"))[role]


async def test_the_scan_finds_what_an_administrator_can_do(nats: EmbeddedNatsWithAccounts) -> None:
    async with Site.opened(nats, name="administrator") as site:
        found = await scan(site, "rollout", alone=True, account=JOB)
        ours, theirs = site.ours.ledger.name, stream_names(site.other)
    assert {"LEDGER: STREAM.DELETE", "LEDGER: write", "TASKS: hear", f"changed without a right: {ours}"} <= found
    # And even that one does nothing to the other job.
    assert found.isdisjoint(f"changed without a right: {name}" for name in theirs)
