"""Tools that run in a real sandbox: Python, and MCP servers over standard input and output."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.sandbox import PATIENT, a_sandbox
from trimtab.rollout.sandbox.contract import ProgramLimits, Sandbox
from trimtab.rollout.tools.mcp import McpTool
from trimtab.rollout.tools.python import Python
from trimtab.rollout.tools.tool import MAX_RESULT_CHARS, ToolFailed

SERVER = b"""
import json, os, sys

TEXT = {"type": "string"}
TOOLS = [
    {"name": "shout", "description": "makes words\\n loud", "inputSchema": {"properties": {"words": TEXT}}},
    {"name": "add", "inputSchema": {"properties": {"one": {"type": "number"}, "other": {"type": "number"}}}},
]
print("a line that is no message", flush=True)
ready = False
for line in sys.stdin:
    message = json.loads(line)
    method, number = message["method"], message.get("id")
    if method == "notifications/initialized":
        ready = True
        continue
    if method == "initialize":
        answer = {"result": {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {}}}
    elif not ready:
        answer = {"error": {"code": -1, "message": "who are you?"}}
    elif method == "tools/list":
        answer = {"result": {"tools": TOOLS}}
    elif message["params"]["name"] == "shout":
        words = message["params"]["arguments"]["words"]
        if words == "die":
            os._exit(3)
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}), flush=True)
        answer = {"result": {"content": [{"type": "text", "text": words.upper()}], "isError": words == "wrong"}}
    else:
        try:
            total = message["params"]["arguments"]["one"] + message["params"]["arguments"]["other"]
            answer = {"result": {"content": [{"type": "text", "text": str(total)}]}}
        except KeyError as error:
            answer = {"error": {"code": -32602, "message": f"missing {error}"}}
    print(json.dumps({"jsonrpc": "2.0", "id": number, **answer}), flush=True)
"""


@dataclass(frozen=True)
class Bench:
    sandbox: Sandbox


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with a_sandbox(concurrency=2) as sandbox:
        yield Bench(sandbox)


def served(tool: str) -> McpTool:
    return McpTool(command=["python3", "server.py"], tool=tool, files={"server.py": SERVER}, limits=PATIENT)


async def test_python_tells_what_it_printed_or_why_it_ended(bench: Bench) -> None:
    python = Python(PATIENT)
    assert await python.use("print(6 * 7)", bench) == "42"
    assert await python.use("x = 1", bench) == "It printed nothing."
    assert (await python.use("print(1)\n1 / 0", bench)).startswith("1\nTraceback")
    assert "ZeroDivisionError" in await python.use("1 / 0", bench)
    assert (await python.use("import sys; sys.exit(3)", bench)) == "Error: it ended with 3"
    assert len(await python.use("print('x' * 100_000)", bench)) < MAX_RESULT_CHARS + 100
    brief = Python(ProgramLimits(wall_s=1.0, cpu_s=30))
    assert await brief.use("while True: pass", bench) == "Error: its time was over"


async def test_a_tool_of_an_mcp_server_is_used(bench: Bench, tmp_path: Path) -> None:
    shout, add = served("shout"), served("add")
    assert await shout.description(bench) == "makes words loud; it is given JSON with words"
    assert await shout.use("hello there", bench) == "HELLO THERE"
    assert await shout.use('{"words": "json"}', bench) == "JSON"
    assert await shout.use("wrong", bench) == "Error: WRONG"
    assert await add.use('{"one": 2, "other": 3}', bench) == "5"


async def test_a_wrong_use_is_told_to_the_planner(bench: Bench) -> None:
    add = served("add")
    assert await add.use("2 and 3", bench) == "Error: JSON with one, other is needed"
    assert await add.use('{"one": 2}', bench) == "Error: missing 'other'"


async def test_a_server_that_fails_fails_the_episode(bench: Bench) -> None:
    with pytest.raises(ToolFailed, match="it ended before it answered tools/call"):
        await served("shout").use("die", bench)
    with pytest.raises(ToolFailed, match="has no tool 'whisper'; it has shout, add"):
        await served("whisper").description(bench)
    with pytest.raises(ToolFailed, match="it ended before it answered initialize"):
        await McpTool(command=["python3", "none.py"], tool="x", files={}, limits=PATIENT).description(bench)
