"""nats-server as in production: without passwords, it lets in whom an account vouches for (fabric.bus.users)."""

from __future__ import annotations

import json
import time
from pathlib import Path

from trimtab.embedded.child import Command
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.ports import LOOPBACK
from trimtab.fabric.bus.users.mint import DEFAULT_WINDOW_S, UserMint
from trimtab.fabric.bus.users.trust import MAX_CONTROL_LINE, new_trust
from trimtab.fabric.settings import NatsSettings

_YEAR_S = 365 * 24 * 3600


class EmbeddedNatsWithAccount(EmbeddedNats):
    """The account is made with the data folder and stays. `settings` are an administrator's, for people and tests."""

    @property
    def account_seed_file(self) -> Path:
        return self.data_folder / "account.seed"

    @property
    def administrator_file(self) -> Path:
        return self.data_folder / "administrator.creds"

    @property
    def address(self) -> NatsSettings:
        """Without a user."""
        return NatsSettings(servers=(f"nats://{LOOPBACK}:{self.ports['client']}",))

    @property
    def settings(self) -> NatsSettings:
        return self.address.model_copy(update={"credentials_file": self.administrator_file})

    def mint(self, *, window_s: int = DEFAULT_WINDOW_S) -> UserMint:
        return UserMint(self.account_seed_file.read_text(), account=None, window_s=window_s, clock=time.time)

    def command(self) -> Command:
        command = super().command()
        trust = self.data_folder / "trust.conf"
        if not self.account_seed_file.exists():
            made = new_trust(issued_at=int(time.time()))
            # The seed last: without it, both are made again.
            _write_secret(trust, made.server)
            _write_secret(self.account_seed_file, made.account_seed)
        _write_secret(self.administrator_file, self.mint(window_s=_YEAR_S).administrator().credentials)
        file = self.data_folder / "nats.conf"
        config = json.loads(file.read_text())
        del config["authorization"]
        lines = [f"{name}: {json.dumps(value)}" for name, value in config.items()]
        file.write_text("\n".join([*lines, f"max_control_line: {MAX_CONTROL_LINE}", f"include {trust.name}", ""]))
        return command


def _write_secret(file: Path, content: str) -> None:
    partial = file.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_text(content)
    partial.replace(file)
