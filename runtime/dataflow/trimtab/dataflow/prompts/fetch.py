"""Brings a source from object storage to the pod's scratch folder, where it is read like any other."""

from __future__ import annotations

import hashlib
from pathlib import Path

from trimtab.dataflow.prompts.prompt import PromptSourceError
from trimtab.fabric.objects.below import NoRoom, NothingThere, Wanted, fetch_below
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import InvalidKey, StoreRefused, StoreUnauthorized
from trimtab.fabric.settings import ObjectStoreSettings

SCHEME = "s3://"


class PromptFetcher:
    """The job's object store, with its address and credentials but any bucket, and a folder for what comes from it."""

    def __init__(self, settings: ObjectStoreSettings, scratch: Path) -> None:
        self._settings = settings
        self._scratch = scratch

    async def fetch(self, uri: str, *, source: str, wanted: Wanted) -> Path:
        """The object `uri` as a file, or those of the objects below it that are wanted as a folder."""
        bucket, _, key = uri.removeprefix(SCHEME).partition("/")
        settings = self._settings.model_copy(update={"bucket": bucket, "prefix": ""})
        home = self._scratch / f"{source}-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"
        field = f"data.prompts[{source}]"
        try:
            async with ObjectStore(settings) as store:
                return await fetch_below(store, key, home, wanted=wanted)
        except NothingThere:
            raise PromptSourceError(f"{field}: there is neither {uri} nor a file of the source below it") from None
        except NoRoom as shortage:
            raise PromptSourceError(f"{field} {shortage}; give the dataflow pod a larger volume") from None
        except (StoreUnauthorized, StoreRefused, InvalidKey) as error:
            raise PromptSourceError(f"{field}: {uri} cannot be read: {error}") from None
