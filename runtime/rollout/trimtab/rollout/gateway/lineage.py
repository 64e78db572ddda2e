"""What a role was asked and what it answered, as a tree of messages: where a history goes on from a turn that was
sampled, its tokens stand for it, and only what is new is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trimtab.rollout.gateway.canonical import Key, keys_of, thoughts_agree
from trimtab.rollout.gateway.exchange import Said
from trimtab.rollout.gateway.rendering import Rendering
from trimtab.rollout.workflows.conversation import Conversation, Turn

_MOST_TRIES = 8
"""Turns from which it is tried to go on, the latest first. Each takes two renderings of the history."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """A turn, and a conversation that has it."""

    turn: Turn
    conversation: Conversation


@dataclass(eq=False, kw_only=True)
class Node:
    """One message behind others. Several nodes of one parent may have the same words, sampled more than once."""

    said: Said | None
    """None at the root alone."""
    sampled: Sampled | None = None
    """None for messages that the agent wrote."""
    parent: Node | None = None
    turns: int = 0
    """Sampled ones from the root to here."""
    children: dict[Key, list[Node]] = field(default_factory=dict)

    def add(self, key: Key, said: Said, sampled: Sampled | None = None) -> Node:
        child = Node(said=said, sampled=sampled, parent=self, turns=self.turns + (sampled is not None))
        self.children.setdefault(key, []).append(child)
        return child

    def path(self) -> tuple[Node, ...]:
        """From the root to here."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return tuple(reversed(nodes))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How much of a history is known."""

    path: tuple[Node, ...]
    """From the root, which comes first, to the last message that agrees."""
    rest: tuple[Said, ...]
    rest_keys: tuple[Key, ...]

    @property
    def unmatched(self) -> int:
        """Messages that the agent says are the assistant's, and that nobody sampled there."""
        return sum(message.speaker == "assistant" for message in self.rest)

    @property
    def parted(self) -> bool:
        """Whether something else was said before behind the last message that agrees."""
        return len(self.path) > 1 and bool(self.path[-1].children)

    def extended(self) -> Node:
        """The node of the last message, with the rest in the tree."""
        node = self.path[-1]
        for key, said in zip(self.rest_keys, self.rest, strict=True):
            node = node.add(key, said)
        return node


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """From where on the policy speaks, and what it hears before."""

    sampled: Sampled | None
    """The latest turn whose tokens are kept; None for a conversation that begins."""
    heard: tuple[int, ...]
    text: str
    """What it hears, and what ends the turn before, as the template writes it."""
    rewritten: int
    """Turns that agree, and that the template shows otherwise now. They are text here, which is not trained."""


def agreement(root: Node, messages: Sequence[Said]) -> Agreement:
    """With the longest beginning that is known; among equals the one with most sampled turns, then the latest."""
    keys = keys_of(messages)
    ends = [root]
    for message, key in zip(messages, keys, strict=True):
        further = [
            child
            for end in ends
            for child in end.children.get(key, ())
            if child.said is not None and thoughts_agree(message, child.said)
        ]
        if not further:
            break
        ends = further
    best = max(enumerate(ends), key=lambda numbered: (numbered[1].turns, numbered[0]))[1].path()
    known = len(best) - 1
    rest = _with_our_ids(messages[:known], best[1:], messages[known:])
    return Agreement(path=best, rest=rest, rest_keys=keys[known:])


def _with_our_ids(sent: Sequence[Said], nodes: Sequence[Node], rest: Sequence[Said]) -> tuple[Said, ...]:
    """An agent that calls our calls otherwise answers them under its own names, which the template must not show."""
    ours: dict[str, str] = {}
    for message, node in zip(sent, nodes, strict=True):
        if node.said is not None:
            pairs = zip(message.calls, node.said.calls, strict=True)
            ours.update({call.call_id: recorded.call_id for call, recorded in pairs})
    return tuple(replace(one, answers=ours[one.answers]) if one.answers in ours else one for one in rest)


def continuation(found: Agreement, rendering: Rendering, *, keep_thoughts: bool) -> Continuation:
    """`keep_thoughts` leaves earlier thoughts in their place, also where the template would drop them by now.

    Raises ChatTemplateError for messages that the template refuses.
    """
    known = [node for node in found.path if node.said is not None]
    # As recorded: with the thoughts that the agent dropped, and with our ids of calls.
    messages = [*(node.said for node in known if node.said is not None), *found.rest]
    compared = [replace(message, reasoning="") for message in messages] if keep_thoughts else messages
    given_up = 0
    for place in reversed(range(len(known))):
        sampled = known[place].sampled
        if sampled is None:
            continue
        if given_up < _MOST_TRIES:
            behind = rendering.behind(compared, turn=place, said=sampled.turn.completion)
            if behind is not None:
                return Continuation(sampled=sampled, heard=behind.heard, text=behind.text, rewritten=given_up)
        given_up += 1
    prompt = rendering.prompt(messages)
    opening = rendering.tokenizer.encode(prompt)
    return Continuation(sampled=None, heard=tuple(opening), text=prompt, rewritten=given_up)
