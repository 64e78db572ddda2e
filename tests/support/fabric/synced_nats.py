"""A nats-server that acknowledges what the disk has, as the chart installs it."""

from __future__ import annotations

import json

from trimtab.embedded.child import Command
from trimtab.embedded.nats_server import EmbeddedNats


class SyncedNats(EmbeddedNats):
    def command(self) -> Command:
        command = super().command()
        file = self.data_folder / "nats.conf"
        config = json.loads(file.read_text())
        config["jetstream"]["sync_interval"] = "always"
        file.write_text(json.dumps(config))
        return command
