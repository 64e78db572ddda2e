"""GLM 4.5 and later: a call is a name and marked arguments between <tool_call> and </tool_call>. Texts stand there as
they are and all else as JSON, so that only the tool's own description tells the text 5 from the number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.gateway.exchange import Tool
from trimtab.rollout.gateway.parsing.reader import Called

_NAME = re.compile(r"\s*(?P<name>[^\s<>{}\"]+)\s*")
_ARGUMENT = re.compile(r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*", re.DOTALL)


class GlmCalls:
    opening = "<tool_call>"
    closing: str | None = "</tool_call>"
    only_first = False

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._parameters = {tool.name: tool.parameters for tool in tools}

    def read(self, body: str) -> tuple[Called, ...] | None:
        name = _NAME.match(body)
        if name is None:
            return None
        at = name.end()
        arguments: dict[str, Any] = {}
        while argument := _ARGUMENT.match(body, at):
            key, at = argument["key"].strip(), argument.end()
            arguments[key] = _value(argument["value"], _described(self._parameters.get(name["name"], {}), key))
        if at < len(body):
            return None
        return (Called(name=name["name"], arguments=json.dumps(arguments, ensure_ascii=False)),)


def _value(text: str, described: Mapping[str, Any]) -> Any:
    types = described.get("type")
    if types == "string" or (isinstance(types, list) and "string" in types):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _described(parameters: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What the agent says of an argument. It may say anything."""
    properties = parameters.get("properties")
    described = properties.get(key) if isinstance(properties, Mapping) else None
    return described if isinstance(described, Mapping) else {}
