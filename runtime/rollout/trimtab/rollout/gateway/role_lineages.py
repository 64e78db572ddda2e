"""All that one role was asked in an episode: its trees of messages and of texts, and its conversations, each a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from trimtab.rollout.gateway.canonical import keys_of, tools_key
from trimtab.rollout.gateway.exchange import Ask, Refused, Said
from trimtab.rollout.gateway.lineage import Agreement, Continuation, Node, Sampled, agreement, continuation
from trimtab.rollout.gateway.parsing.families import PLAIN, Family
from trimtab.rollout.gateway.parsing.reader import THOUGHT
from trimtab.rollout.gateway.rendering import Rendering, family_for
from trimtab.rollout.gateway.tally import Counted, Tally
from trimtab.rollout.gateway.text_lineage import TextNode, text_agreement
from trimtab.rollout.tokenizer import ChatTemplateError
from trimtab.rollout.workflows.conversation import Conversation, Role
from trimtab.rollout.workflows.team import Team


class Place(ABC):
    """Where in the episode an answer belongs."""

    def __init__(self, *, heard: tuple[int, ...], sampled: Sampled | None, family: Family, thinking: bool) -> None:
        self.heard = heard
        self.sampled = sampled
        self.family = family
        self.thinking = thinking

    @property
    def known_tokens(self) -> int:
        """That the conversation has before it hears anything new."""
        if self.sampled is None:
            return 0
        pieces = self.sampled.conversation.pieces
        return sum(len(piece.token_ids) for piece in pieces[: pieces.index(self.sampled.turn) + 1])

    @abstractmethod
    def record(self, said: Said, written: str, sampled: Sampled) -> None:
        """What the policy answered. `written` is all that it wrote, as text."""


class _ChatPlace(Place):
    def __init__(self, found: Agreement, ask: Ask, going_on: Continuation, family: Family) -> None:
        thinking = going_on.text.rstrip().endswith(THOUGHT[0])
        super().__init__(heard=going_on.heard, sampled=going_on.sampled, family=family, thinking=thinking)
        self._found = found
        self._ask = ask
        self._end: Node | None = None

    def record(self, said: Said, written: str, sampled: Sampled) -> None:
        if self._end is None:
            self._end = self._found.extended()
        assert not isinstance(self._ask.messages, str)
        self._end.add(keys_of((*self._ask.messages, said))[-1], said, sampled)


class _TextPlace(Place):
    def __init__(self, node: TextNode, heard_text: str, *, heard: tuple[int, ...]) -> None:
        super().__init__(heard=heard, sampled=node.sampled, family=PLAIN, thinking=False)
        self._node = node
        self._heard_text = heard_text

    def record(self, said: Said, written: str, sampled: Sampled) -> None:
        self._node.add(heard=self._heard_text, written=written, shown=said.text, sampled=sampled)


class RoleLineages:
    def __init__(self, role: Role, team: Team, tally: Tally, *, keep_thoughts: bool) -> None:
        self.role = role
        self._team = team
        self._tally = tally
        self._keep_thoughts = keep_thoughts
        self._family = family_for(role.tokenizer)
        self._roots: dict[str, Node] = {}
        self._texts = TextNode()
        self._taken: set[Conversation] = set()
        self.conversations: dict[Conversation, None] = {}
        """In the order in which they first spoke."""

    def place(self, ask: Ask) -> Place:
        """Raises Refused for what cannot be put to the policy."""
        return self._text_place(ask.messages) if isinstance(ask.messages, str) else self._chat_place(ask)

    @contextmanager
    def conversation(self, place: Place) -> Iterator[Conversation]:
        """One that goes on from there: the one that stands there, if nobody else has gone on with it."""
        sampled = place.sampled
        if sampled is None:
            # Its words are tokens already, so it needs no chat template.
            chosen = self._team.begin(self.role.name, chat=False)
        elif sampled.conversation.pieces[-1] is sampled.turn and sampled.conversation not in self._taken:
            chosen = sampled.conversation
        else:
            chosen = sampled.conversation.fork_after(sampled.turn)
        self._taken.add(chosen)
        try:
            yield chosen
        finally:
            self._taken.discard(chosen)

    def spoke(self, conversation: Conversation) -> None:
        """It is a row from now on, whatever becomes of the answer."""
        self._tally.count(Counted.TURNS)
        if conversation not in self.conversations:
            self.conversations[conversation] = None
            self._tally.count(Counted.LINEAGES)

    def _chat_place(self, ask: Ask) -> Place:
        messages = ask.messages
        assert not isinstance(messages, str)
        tokenizer = self.role.tokenizer
        if tokenizer.render is None:
            raise Refused(
                f"messages: the tokenizer of role {self.role.name} has no chat template; ask for completions of a text"
            )
        if not messages:
            raise Refused("messages is empty; send one at least")
        if messages[-1].speaker == "assistant":
            raise Refused("messages: the last one is the assistant's; send what it is to answer")
        if ask.tools and "tools" not in tokenizer.template_arguments:
            raise Refused(f"tools: the chat template of role {self.role.name} does not know them")
        found = agreement(self._roots.setdefault(tools_key(ask.tools), Node(said=None)), messages)
        rendering = Rendering(tokenizer=tokenizer, family=self._family, tools=ask.tools)
        try:
            going_on = continuation(found, rendering, keep_thoughts=self._keep_thoughts)
        except ChatTemplateError as error:
            raise Refused(f"messages: {error}") from error
        self._tally.count(Counted.ECHOED, found.path[-1].turns - going_on.rewritten)
        self._tally.count(Counted.UNMATCHED, found.unmatched)
        self._tally.count(Counted.REWRITTEN, going_on.rewritten)
        self._tally.count(Counted.PARTED, int(found.parted))
        read_by_marks = bool(ask.tools) or self._family.marks_without_tools
        return _ChatPlace(found, ask, going_on, self._family if read_by_marks else PLAIN)

    def _text_place(self, prompt: str) -> Place:
        found = text_agreement(self._texts, prompt)
        heard = tuple(self.role.tokenizer.encode(found.rest))
        if not heard and found.node.sampled is None:
            raise Refused("prompt is empty; send one token at least")
        self._tally.count(Counted.ECHOED, int(found.node.sampled is not None))
        self._tally.count(Counted.UNMATCHED, found.unmatched)
        self._tally.count(Counted.PARTED, int(found.node.sampled is not None and bool(found.node.children)))
        return _TextPlace(found.node, found.rest, heard=heard)
