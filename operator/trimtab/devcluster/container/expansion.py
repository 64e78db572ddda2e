"""$(NAME) in commands, arguments and values, by the rules of Kubernetes: unknown names stay, $$ is a dollar sign."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        dollar, name = match.groups()
        return "$" if dollar else variables.get(name, match[0])

    return _REFERENCE.sub(replacement, text)
