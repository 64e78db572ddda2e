"""For workers whose rows all fit into messages."""

from __future__ import annotations

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.settings import ObjectStoreSettings


def unused_claims() -> RowClaims:
    """In a store that is never dialled."""
    return RowClaims(ObjectStore(ObjectStoreSettings(bucket="never-dialled")))
