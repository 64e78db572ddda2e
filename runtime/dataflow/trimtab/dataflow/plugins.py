"""Makes the classes of the user's that the manifest names for the dataflow."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from trimtab.api.scalars import Plugin
from trimtab.fabric.pod import JobMisconfigured


def load_plugin(plugin: Plugin, *, field: str, folder: Path) -> object:
    """Import `module:Class`, from the manifest's folder first, and make it with its args. `field` is where the manifest
    names it."""
    importable = str(folder.resolve())
    if importable not in sys.path:
        sys.path.insert(0, importable)
    module_name, _, class_name = plugin.entrypoint.partition(":")
    # A module and a class of the user's: whatever they raise is about the manifest, and says so.
    try:
        plugin_class = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:
        raise JobMisconfigured(f"{field}.entrypoint {plugin.entrypoint!r} cannot be loaded: {error}") from error
    try:
        made: object = plugin_class(**plugin.args)
    except Exception as error:
        raise JobMisconfigured(f"{field}.args do not fit {plugin.entrypoint}: {error}") from error
    return made
