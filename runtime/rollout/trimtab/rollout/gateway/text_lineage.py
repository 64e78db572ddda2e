"""Histories without messages: a prompt that begins with an earlier one and its whole completion goes on from there."""

from __future__ import annotations

from dataclasses import dataclass, field

from trimtab.rollout.gateway.lineage import Sampled


@dataclass(eq=False, kw_only=True)
class TextNode:
    """A completion behind what was known before it."""

    text: str = ""
    """What was new of the prompt, and the completion as it was sampled: with the text that stopped it."""
    shown: str = ""
    """The same as the agent saw it: without."""
    sampled: Sampled | None = None
    children: list[TextNode] = field(default_factory=list)

    def add(self, *, heard: str, written: str, shown: str, sampled: Sampled) -> TextNode:
        child = TextNode(text=heard + written, shown=heard + shown, sampled=sampled)
        self.children.append(child)
        return child


@dataclass(frozen=True, kw_only=True)
class TextAgreement:
    """The latest completion that the prompt repeats, and what it says behind it."""

    node: TextNode
    rest: str
    unmatched: int
    """1 where the prompt repeats a completion without the text that stopped it and goes on otherwise: then it is text
    to the policy, and not trained.
    """


def text_agreement(root: TextNode, prompt: str) -> TextAgreement:
    """With the longest beginning that is known; among equals the latest."""
    best, known, frontier = root, 0, [(root, 0)]
    while frontier:
        frontier = [
            (child, at + len(child.text))
            for node, at in frontier
            for child in node.children
            if prompt.startswith(child.text, at)
        ]
        for node, at in frontier:
            if at >= known:
                best, known = node, at
    rest = prompt[known:]
    cut = any(child.shown != child.text and rest.startswith(child.shown) for child in best.children)
    return TextAgreement(node=best, rest=rest, unmatched=int(cut))
