"""A look at a job's streams as an administrator, with a user minted from the key that the operator works with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.fabric.settings import NatsSettings


async def administrators_bus(servers: Mapping[str, str], *, job_uid: str) -> Bus:
    """`servers` is the operator's environment."""
    settings = NatsSettings(servers=tuple(servers["TRIMTAB_NATS__SERVERS"].split(",")))
    seed = Path(servers["TRIMTAB_NATS_ACCOUNTS__SEED_FILE"]).read_text()
    minted = AccountMint(seed, clock=time.time).administrator(job_uid=job_uid).credentials
    return await Bus.connect(settings, name="test", credentials=MintedCredentials(lambda: minted))
