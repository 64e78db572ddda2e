"""Which certificates we trust when we dial. They are renewed while we run, as a kubelet does in mounted Secrets, so
every dial asks for a context here, and gets a new one once a file has another content.
"""

from __future__ import annotations

import ssl
import tempfile
import threading
from pathlib import Path

Pem = Path | bytes
"""A file, read at every dial, or what is in one."""


class TlsUnusable(OSError):
    """A file cannot be read, or is no PEM. To those who dial it is a failed dial: they try again, and read again."""


class ChangingFile:
    """A file that is replaced from outside."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def content(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise TlsUnusable(f"{self._path} cannot be read: {error.strerror}") from None


class ClientTls:
    """Contexts for dialling. Without an authority, those that the system trusts are trusted (SSL_CERT_FILE)."""

    def __init__(self, *, authority: Pem | None = None, certificate: Pem | None = None, key: Pem | None = None) -> None:
        """`certificate` and `key` are our own, for servers that ask who we are; the key may be in the certificate's
        file."""
        self._sources = (authority, certificate, key)
        self._lock = threading.Lock()
        self._contents: tuple[bytes | None, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """The same one as long as the files are the same: connection pools tell connections apart by it. Raises
        TlsUnusable."""
        authority, certificate, key = self._sources
        contents = (_content(_systems_file() if authority is None else authority), _content(certificate), _content(key))
        with self._lock:
            if self._context is None or contents != self._contents:
                self._context, self._contents = self._made(*contents), contents
            return self._context

    def _made(self, authority: bytes | None, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext:
        try:
            if self._sources[0] is None or authority is None:
                context = ssl.create_default_context()
            else:
                # Not cadata="": then Python would trust whom the system trusts. Comments may be in any language.
                context = ssl.create_default_context(cadata=authority.decode("ascii", errors="ignore") or "\n")
            if certificate is not None:
                # Python's ssl reads client certificates from files only. One file, so that they belong together.
                with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
                    pem.write(certificate.rstrip() + b"\n" + (key or b""))
                    pem.flush()
                    context.load_cert_chain(pem.name)
        except (ssl.SSLError, ValueError) as error:
            files = [str(source) for source in self._sources if isinstance(source, Path)]
            found = f" in {', '.join(files)}" if files else ""
            raise TlsUnusable(
                f"a certificate or key{found} is no valid PEM, or they do not belong together ({error})"
            ) from None
        return context


def _systems_file() -> Path | None:
    found = ssl.get_default_verify_paths().cafile
    return None if found is None else Path(found)


def _content(source: Pem | None) -> bytes | None:
    return ChangingFile(source).content() if isinstance(source, Path) else source
