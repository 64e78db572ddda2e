"""The tools that a manifest names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.rollout.search.opening import open_search
from trimtab.rollout.tools.calculator import Calculator
from trimtab.rollout.tools.mcp import McpTool
from trimtab.rollout.tools.python import Python, limits_of
from trimtab.rollout.tools.search import SearchTool
from trimtab.rollout.tools.tool import Tool

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_KINDS = ("calculator", "python", "search", "mcp")


def open_tools(given: Mapping[str, Any], *, folder: Path) -> dict[str, Tool]:
    """By name. `{python: {}}` is a tool of the kind of its name; another name says its kind: `{wiki: {kind: search,
    corpus: …}}`. Files are those of `folder`. Raises ValueError, which names what is wrong.
    """
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"tools is {given!r:.80}: at least one is needed, such as {{calculator: {{}}}}")
    return {name: _opened(str(name), settings or {}, folder=folder) for name, settings in given.items()}


def needs_folder(given: Mapping[str, Any]) -> bool:
    """Whether a tool has files beside the manifest."""
    settings = [one for one in given.values() if isinstance(one, Mapping)]
    return any("files" in one or not Path(str(one.get("corpus", "/"))).is_absolute() for one in settings)


def _opened(name: str, settings: Mapping[str, Any], *, folder: Path) -> Tool:
    if not _NAME.fullmatch(name) or name == "answer":
        raise ValueError(f"tools.{name}: a name is up to 32 small letters, digits or _, and not `answer`")
    if not isinstance(settings, Mapping):
        raise ValueError(f"tools.{name} is {settings!r:.80}: settings, or {{}}, are needed")  # noqa: TRY004
    kind = settings.get("kind", name)
    own = {key: value for key, value in settings.items() if key != "kind"}
    try:
        if kind == "calculator":
            _none_unknown(own, ())
            return Calculator()
        if kind == "python":
            return Python(limits_of(own, name="limits"))
        if kind == "search":
            return SearchTool(open_search(own, folder=folder))
        if kind == "mcp":
            return _mcp(own, folder=folder)
    except ValueError as error:
        raise ValueError(f"tools.{name}: {error}") from error
    raise ValueError(f"tools.{name}: its kind is {kind!r:.80}: one of {', '.join(_KINDS)}")


def _mcp(settings: Mapping[str, Any], *, folder: Path) -> McpTool:
    _none_unknown(settings, ("command", "tool", "files", "limits"))
    command, tool = settings.get("command"), settings.get("tool")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise ValueError(f"command is {command!r:.80}: a list of words is needed, such as [python3, server.py]")
    if not isinstance(tool, str) or not tool:
        raise ValueError(f"tool is {tool!r:.80}: the name of one of the server's tools is needed")
    files = settings.get("files", [])
    if not isinstance(files, list) or not all(isinstance(file, str) and _inside(file) for file in files):
        raise ValueError(f"files is {files!r:.80}: paths within workflow.source.path are needed")
    try:
        contents = {file: (folder / file).read_bytes() for file in files}
    except OSError as error:
        raise ValueError(f"files: {error}") from error
    limits = limits_of(settings.get("limits") or {}, name="limits")
    return McpTool(command=command, tool=tool, files=contents, limits=limits)


def _inside(file: str) -> bool:
    return not Path(file).is_absolute() and ".." not in Path(file).parts


def _none_unknown(settings: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(f"{unknown[0]} is unknown; there are {', '.join(known) or 'no settings'}")
