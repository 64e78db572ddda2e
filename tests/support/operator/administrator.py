"""A look at the bus as an administrator, with a user minted by the account that the operator works for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.users.mint import UserMint
from trimtab.fabric.settings import NatsSettings


async def administrators_bus(servers: Mapping[str, str]) -> Bus:
    """`servers` is the operator's environment."""
    settings = NatsSettings(servers=tuple(servers["TRIMTAB_NATS__SERVERS"].split(",")))
    seed = Path(servers["TRIMTAB_NATS_ACCOUNT__SEED_FILE"]).read_text()
    minted = UserMint(seed, account=None, clock=time.time).administrator().credentials
    return await Bus.connect(settings, name="test", credentials=MintedCredentials(lambda: minted))
