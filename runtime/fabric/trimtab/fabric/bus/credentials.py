"""The secrets of a NATS connection: reading them, and keeping them out of everything that is printed."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import nkeys  # type: ignore[import-untyped]
from nats.errors import Error as NatsError

from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.tls import ClientTls


class Credentials(Protocol):
    """Who dials. Asked anew for every dial, so that what was renewed is used."""

    def user_jwt(self) -> bytes: ...

    def sign(self, nonce: str) -> bytes: ...


class CredentialsText(ABC):
    """The content of a `.creds` file.

    nats-py's own reader spins for ever on a file without the JWT marker, so it is parsed here.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin

    @abstractmethod
    def read(self) -> str:
        """The text as it is now."""

    def _block(self, marker: str) -> str:
        lines = self.read().splitlines()
        for number, line in enumerate(lines[:-1]):
            if f"BEGIN {marker}" in line and lines[number + 1].strip():
                return lines[number + 1].strip()
        raise NatsError(f"{self._origin} has no {marker} block")

    def user_jwt(self) -> bytes:
        return self._block("NATS USER JWT").encode()

    def sign(self, nonce: str) -> bytes:
        seed = bytearray(self._block("USER NKEY SEED").encode())
        try:
            pair = nkeys.from_seed(seed)
            signature: bytes = pair.sign(nonce.encode())
            pair.wipe()
        except (nkeys.NkeysError, ValueError) as error:
            raise NatsError(f"{self._origin}: the seed cannot sign ({type(error).__name__})") from None
        return base64.b64encode(signature)


class CredentialsFile(CredentialsText):
    def __init__(self, path: Path) -> None:
        super().__init__(f"credentials file {path}")
        self._path = path

    def read(self) -> str:
        # What is not ASCII is no credential: the block that is looked for is then missing, which is an error of a dial.
        return self._path.read_text(encoding="ascii", errors="replace")


class MintedCredentials(CredentialsText):
    """Of a user that we mint ourselves: each dial has one that has not expired."""

    def __init__(self, mint: Callable[[], str]) -> None:
        super().__init__("minted credentials")
        self._mint = mint

    def read(self) -> str:
        return self._mint()


def wants_tls(settings: NatsSettings) -> bool:
    """True when an unencrypted connection must be refused."""
    by_file = settings.tls_ca_file is not None or settings.tls_cert_file is not None
    return by_file or any(server.startswith(("tls://", "wss://")) for server in settings.servers)


def tls_of(settings: NatsSettings) -> ClientTls | None:
    if not wants_tls(settings):
        return None
    return ClientTls(authority=settings.tls_ca_file, certificate=settings.tls_cert_file, key=settings.tls_key_file)


def without_userinfo(servers: Iterable[str]) -> str:
    """Server addresses fit for a message: `nats://user:password@host` loses what is before the @."""
    return ", ".join(server.rsplit("@", 1)[-1] if "@" in server else server for server in servers)


class Redactor:
    """Replaces the connection's secrets in text that came from elsewhere."""

    def __init__(self, settings: NatsSettings) -> None:
        secrets = {settings.password.get_secret_value()} if settings.password is not None else set()
        secrets |= {password for server in settings.servers if (password := urlsplit(server).password)}
        # Longest first, so that a secret contained in another does not leave the rest of it behind.
        self._secrets = sorted((secret for secret in secrets if secret), key=len, reverse=True)

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
