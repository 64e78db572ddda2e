"""Makes the classes of the user's that a manifest names by entry point."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.fabric.pod import JobMisconfigured


def find_class(entrypoint: str, *, field: str, folder: Path | None = None) -> Any:
    """Import `module:Class`, from `folder` first. `field` is where the manifest names it."""
    if folder is not None and (importable := str(folder.resolve())) not in sys.path:
        sys.path.insert(0, importable)
    module_name, _, class_name = entrypoint.partition(":")
    # A module and a class of the user's: whatever they raise is about the manifest, and says so.
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except Exception as error:
        raise JobMisconfigured(f"{field} {entrypoint!r} cannot be loaded: {error}") from error


def load_class(entrypoint: str, args: Mapping[str, Any], *, field: str, folder: Path | None) -> object:
    """Find the class as `field.entrypoint` names it, and make it with `args`."""
    named = find_class(entrypoint, field=f"{field}.entrypoint", folder=folder)
    try:
        made: object = named(**args)
    except Exception as error:
        raise JobMisconfigured(f"{field}.args do not fit {entrypoint}: {error}") from error
    return made
