"""The tools that a manifest names, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trimtab.rollout.tools.calculator import Calculator
from trimtab.rollout.tools.mcp import McpTool
from trimtab.rollout.tools.opening import needs_folder, open_tools
from trimtab.rollout.tools.python import Python
from trimtab.rollout.tools.search import SearchTool


def test_tools_are_of_the_kind_of_their_name_or_of_another(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "a word"}')
    (tmp_path / "server.py").write_text("")
    given = {
        "calculator": {},
        "python": {"wall_s": 2},
        "wiki": {"kind": "search", "corpus": "corpus.jsonl"},
        "weather": {"kind": "mcp", "command": ["python3", "server.py"], "tool": "get", "files": ["server.py"]},
    }
    opened = open_tools(given, folder=tmp_path)
    assert [type(tool) for tool in opened.values()] == [Calculator, Python, SearchTool, McpTool]
    assert needs_folder(given)
    assert not needs_folder({"calculator": {}, "python": None, "search": {"url": "http://a"}})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "tools is {}: at least one is needed"),
        ({"answer": {}}, "tools.answer: a name is .* and not `answer`"),
        ({"My Tool": {}}, "tools.My Tool: a name is up to 32 small letters"),
        ({"python": 3}, "tools.python is 3: settings, or {}, are needed"),
        ({"wiki": {}}, "tools.wiki: its kind is 'wiki': one of calculator, python, search, mcp"),
        ({"calculator": {"digits": 3}}, "tools.calculator: digits is unknown; there are no settings"),
        ({"python": {"network": True}}, "tools.python: limits.network is unknown; there are cpu_s"),
        ({"python": {"wall_s": 0}}, "tools.python: limits.wall_s is 0: a number above 0"),
        ({"search": {}}, "tools.search: search needs corpus"),
        ({"mcp": {"command": "server", "tool": "x"}}, "tools.mcp: command is 'server': a list of words"),
        ({"mcp": {"command": ["x"]}}, "tools.mcp: tool is None: the name of one of the server's tools"),
        ({"mcp": {"command": ["x"], "tool": "x", "files": ["../secret"]}}, "files is .*: paths within workflow.source"),
        ({"mcp": {"command": ["x"], "tool": "x", "files": ["none.py"]}}, "tools.mcp: files: .*No such file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_tools(given, folder=tmp_path)
