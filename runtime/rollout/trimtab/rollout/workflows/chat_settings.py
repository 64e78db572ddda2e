"""How a shipped workflow speaks to a chat model: `chat`, `solver_chat` and `verifier_chat` of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from trimtab.rollout.tokenizer import Message, Tokenizer


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """`suffix` also serves models without a chat template; the others need one that knows them."""

    system: str | None = None
    """The first message, unless the prompt's own messages begin with one."""
    suffix: str = ""
    """Behind every text that the policy is to answer."""
    enable_thinking: bool | None = None
    """Told to the template; None leaves it to the template's own default."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of functions, as templates take them."""

    @classmethod
    def of(cls, given: Mapping[str, Any] | None, *, name: str) -> Self:
        """From an argument of the manifest. Raises ValueError, which names what is wrong with it."""
        types = {"system": str, "suffix": str, "enable_thinking": bool, "tools": list}
        for key, value in (given or {}).items():
            if key not in types:
                raise ValueError(f"{name}.{key} is unknown; there are {', '.join(field.name for field in fields(cls))}")
            if not isinstance(value, types[key]):
                needed = types[key].__name__
                raise ValueError(f"{name}.{key} is a {type(value).__name__}: a {needed} is needed")  # noqa: TRY004
        if not all(isinstance(tool, Mapping) for tool in (given or {}).get("tools", ())):
            raise ValueError(f"{name}.tools: each is a mapping, the JSON schema of a function")
        return cls(**(given or {}))

    def unusable(self, tokenizer: Tokenizer, *, chat: bool) -> str | None:
        """What of it the tokenizer would leave out in silence, with the reason; None if it takes all."""
        if not chat:
            asked = [name for name in ("system", "enable_thinking", "tools") if self._asks(name)]
            return f"{', '.join(asked)}: the policy's tokenizer has no chat template" if asked else None
        for name in ("enable_thinking", "tools"):
            if self._asks(name) and name not in tokenizer.template_arguments:
                return f"{name}: the chat template of the policy's tokenizer does not use it"
        return None

    @property
    def template_arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("enable_thinking", "tools") if self._asks(name)}

    def opening(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that a conversation begins with."""
        if self.system is None or (messages and messages[0].get("role") == "system"):
            return list(messages)
        return [{"role": "system", "content": self.system}, *messages]

    def suffixed(self, messages: Sequence[Message]) -> list[Message]:
        """With the suffix behind the last of the user's, where that is text."""
        heard = list(messages)
        for place in reversed(range(len(heard))):
            if heard[place].get("role") == "user" and isinstance(heard[place].get("content"), str):
                heard[place] = {**heard[place], "content": f"{heard[place]['content']}{self.suffix}"}
                break
        return heard

    def _asks(self, name: str) -> bool:
        return getattr(self, name) not in (None, ())


PLAIN = ChatSettings()
