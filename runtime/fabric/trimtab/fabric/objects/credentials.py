"""Who we are to the store: keys from the settings, or from a file that is replaced while we run, as by a kubelet when
credentials that last for a while only are renewed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from trimtab.fabric.objects.errors import StoreUnavailable
from trimtab.fabric.settings import ObjectStoreSettings

_MAX_BYTES = 1 << 16


class StoreCredentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Without a key, boto3 looks where it usually does."""

    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None

    def as_file(self) -> str:
        """What `credentials_file` has in it."""
        return msgspec.json.encode(self).decode()

    def __repr__(self) -> str:
        return "StoreCredentials(***)"


def read_credentials(settings: ObjectStoreSettings) -> StoreCredentials:
    """As they are now. A file that cannot be read is an outage: what writes it may be just about to."""
    if settings.credentials_file is None:
        return StoreCredentials(
            access_key_id=settings.access_key_id.get_secret_value() if settings.access_key_id else None,
            secret_access_key=settings.secret_access_key.get_secret_value() if settings.secret_access_key else None,
        )
    return _from_file(settings.credentials_file)


def _from_file(path: Path) -> StoreCredentials:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=StoreCredentials)
    except OSError as error:
        raise StoreUnavailable(f"object_store.credentials_file {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Not what the decoder says: it may quote a key.
        raise StoreUnavailable(
            f"object_store.credentials_file {path} is not JSON with access_key_id, secret_access_key and session_token"
        ) from None
