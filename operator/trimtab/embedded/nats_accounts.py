"""nats-server as in production: without passwords, it takes the accounts that one key signs (fabric.bus.users)."""

from __future__ import annotations

import json
import time
from pathlib import Path

from trimtab.embedded.child import Command
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.ports import LOOPBACK
from trimtab.fabric.bus.users.limits import AccountLimits
from trimtab.fabric.bus.users.mint import DEFAULT_WINDOW_S, AccountMint
from trimtab.fabric.bus.users.trust import MAX_CONTROL_LINE, new_trust, resolver
from trimtab.fabric.durable_files import replace_file
from trimtab.fabric.settings import NatsSettings

# A server that is no cluster lets accounts together have no more than this. Here each is held to its own limit, and
# the disk is the developer's.
_ROOM_BYTES = 1 << 50


class EmbeddedNatsWithAccounts(EmbeddedNats):
    """The key is made with the data folder and stays, as the accounts do that the server is told of."""

    @property
    def operator_seed_file(self) -> Path:
        return self.data_folder / "operator.seed"

    @property
    def address(self) -> NatsSettings:
        """Without a user."""
        return NatsSettings(servers=(f"nats://{LOOPBACK}:{self.ports['client']}",))

    @property
    def settings(self) -> NatsSettings:
        """The same: there is no user for everything."""
        return self.address

    def mint(self, *, window_s: int = DEFAULT_WINDOW_S, limits: AccountLimits | None = None) -> AccountMint:
        seed = self.operator_seed_file.read_text()
        return AccountMint(seed, limits=limits or AccountLimits(), window_s=window_s, clock=time.time)

    def command(self) -> Command:
        command = super().command()
        trust = self.data_folder / "trust.conf"
        if not self.operator_seed_file.exists():
            made = new_trust(issued_at=int(time.time()))
            # The seed last: without it, both are made again.
            replace_file(trust, made.server.encode(), mode=0o600)
            replace_file(self.operator_seed_file, made.operator_seed.encode(), mode=0o600)
        file = self.data_folder / "nats.conf"
        config = json.loads(file.read_text())
        del config["authorization"]
        config["jetstream"]["max_file_store"] = _ROOM_BYTES
        config["resolver"] = resolver(str(self.data_folder / "accounts"))
        config["max_control_line"] = MAX_CONTROL_LINE
        lines = [f"{name}: {json.dumps(value)}" for name, value in config.items()]
        file.write_text("\n".join([*lines, f"include {trust.name}", ""]))
        return command
