"""A tool of an MCP server over standard input and output. The server runs in the sandbox, anew for every use.

A bridge that runs beside the server in the sandbox does the protocol's handshake and one call: a sandbox takes a
program, not a session.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.rollout.sandbox.contract import Program, ProgramLimits
from trimtab.rollout.tools.tool import DEFAULT_LIMITS, Bench, ToolFailed, shortened

_BRIDGE = Path(__file__).with_name("mcp_bridge.py").read_bytes()
_BRIDGE_NAME, _ASKED_NAME, _ANSWER_NAME = ".bridge.py", ".asked.json", ".answer.json"
_MAX_FILES_BYTES = 16 << 20


class McpTool:
    """`tool` of the server that `command` starts in a folder with `files`. It is given JSON with the arguments; where
    the tool takes a single text, the text itself will do.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        tool: str,
        files: Mapping[str, bytes],
        limits: ProgramLimits = DEFAULT_LIMITS,
    ) -> None:
        if sum(map(len, files.values())) > _MAX_FILES_BYTES:
            raise ValueError(f"the files of an MCP server are over {_MAX_FILES_BYTES >> 20} MiB")
        self._command = list(command)
        self._tool = tool
        self._files = dict(files)
        self._limits = limits
        self._schema: Mapping[str, Any] | None = None
        self._asking = asyncio.Lock()

    async def description(self, bench: Bench, /) -> str:
        schema = await self._known(bench)
        arguments = ", ".join(schema["properties"]) or "nothing"
        return f"{schema['description']}; it is given JSON with {arguments}"

    async def use(self, given: str, bench: Bench, /) -> str:
        schema = await self._known(bench)
        arguments = _arguments(given, schema)
        if isinstance(arguments, str):
            return arguments
        answer = await self._bridged({"call": self._tool, "arguments": arguments}, bench)
        if "error" in answer:
            # As arguments that do not fit: the server's answer, not its end.
            return shortened(f"Error: {_message(answer['error'])}")
        result = answer.get("result") or {}
        texts = [str(part.get("text", "")) for part in result.get("content", []) if part.get("type") == "text"]
        said = "\n".join(texts).strip() or "It said nothing."
        return shortened(f"Error: {said}" if result.get("isError") else said)

    async def _known(self, bench: Bench) -> Mapping[str, Any]:
        """Asked for once."""
        async with self._asking:
            if self._schema is None:
                answer = await self._bridged({"list": True}, bench)
                listed = (answer.get("result") or {}).get("tools", [])
                found = next((one for one in listed if one.get("name") == self._tool), None)
                if found is None:
                    names = ", ".join(str(one.get("name")) for one in listed) or "none"
                    raise ToolFailed(f"the MCP server has no tool {self._tool!r}; it has {names}")
                properties = (found.get("inputSchema") or {}).get("properties") or {}
                description = " ".join(str(found.get("description") or self._tool).split())
                self._schema = {"properties": properties, "description": description}
            return self._schema

    async def _bridged(self, asked: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
        files = {
            **self._files,
            _BRIDGE_NAME: _BRIDGE,
            _ASKED_NAME: json.dumps({**asked, "command": self._command}).encode(),
        }
        program = Program(
            command=("python3", _BRIDGE_NAME, _ASKED_NAME, _ANSWER_NAME),
            files=files,
            collect=(_ANSWER_NAME,),
            limits=self._limits,
        )
        ended = await bench.sandbox.run(program)
        try:
            answer = json.loads(ended.files[_ANSWER_NAME])
        except (KeyError, ValueError):
            errors = ended.stderr.decode(errors="replace").strip()[-500:]
            raise ToolFailed(f"the MCP server {self._command} gave no answer ({ended.end}): {errors}") from None
        if not isinstance(answer, dict) or "failed" in answer:
            raise ToolFailed(f"the MCP server {self._command}: {str(answer)[:500]}")
        return answer


def _arguments(given: str, schema: Mapping[str, Any]) -> dict[str, Any] | str:
    """The arguments, or what is wrong with them."""
    properties: Mapping[str, Any] = schema["properties"]
    try:
        value = json.loads(given)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    if len(properties) == 1:
        ((name, kind),) = properties.items()
        if isinstance(kind, Mapping) and kind.get("type") == "string":
            return {name: given.strip()}
    return f"Error: JSON with {', '.join(properties) or 'nothing'} is needed"


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, Mapping) else str(error)
