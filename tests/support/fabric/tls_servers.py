"""NATS and SeaweedFS over TLS, with a certificate that is replaced while clients run, and a file of authorities that
those clients were told of.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.embedded.child import Command
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.embedded.ports import LOOPBACK
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.kube.certificates import CertificateAuthority


def new_authority() -> CertificateAuthority:
    return CertificateAuthority.create(now=datetime.datetime.now(datetime.UTC))


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """What a server shows and what its clients trust, in one folder."""

    folder: Path

    @property
    def trusted_file(self) -> Path:
        return self.folder / "ca.crt"

    def show(self, authority: CertificateAuthority) -> None:
        """From the server's next start on."""
        authority.server(LOOPBACK).write(self.folder, "server")

    def trust(self, *authorities: CertificateAuthority) -> None:
        """As a kubelet does it: the file is exchanged as a whole."""
        partial = self.folder / "ca.partial"
        partial.write_bytes(b"".join(authority.pair.certificate for authority in authorities))
        partial.replace(self.trusted_file)

    @property
    def server_files(self) -> tuple[str, str]:
        return str(self.folder / "server.crt"), str(self.folder / "server.key")


class TlsNats(EmbeddedNatsWithAccounts):
    def __init__(self, data_folder: Path, *, certificates: Certificates) -> None:
        super().__init__(data_folder, supervise=False)
        self.certificates = certificates

    @property
    def address(self) -> NatsSettings:
        return NatsSettings(
            servers=(f"tls://{LOOPBACK}:{self.ports['client']}",), tls_ca_file=self.certificates.trusted_file
        )

    def command(self) -> Command:
        command = super().command()
        certificate, key = self.certificates.server_files
        with (self.data_folder / "nats.conf").open("a") as config:
            config.write(f"tls: {json.dumps({'cert_file': certificate, 'key_file': key})}\n")
        return command


class TlsSeaweed(EmbeddedSeaweed):
    """It answers without TLS too, on another port, which is how its readiness is seen."""

    port_names = (*EmbeddedSeaweed.port_names, "s3.https")

    def __init__(self, data_folder: Path, *, certificates: Certificates) -> None:
        super().__init__(data_folder, supervise=False)
        self.certificates = certificates

    @property
    def tls_settings(self) -> ObjectStoreSettings:
        endpoint = f"https://{LOOPBACK}:{self.ports['s3.https']}"
        return self.settings.model_copy(update={"endpoint_url": endpoint, "ca_file": self.certificates.trusted_file})

    def command(self) -> Command:
        certificate, key = self.certificates.server_files
        https = f"={self.ports['s3.https']}"
        command = super().command()
        # Which takes what is no ordinary port of a part for its gRPC port.
        others = [argument for argument in command.arguments if not argument.endswith(https)]
        own = [f"-s3.port.https{https}", f"-s3.cert.file={certificate}", f"-s3.key.file={key}"]
        return replace(command, arguments=[*others, *own])
