"""A role's conversation: every token in order, with who wrote it. It only grows, and it may be forked.

It is a list of pieces. Forks share the pieces of their common beginning, which is how rows know what they share.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from trimtab.fabric.wire.spans import Producer
from trimtab.fabric.wire.trajectory import Finish
from trimtab.rollout.engines.contract import EngineError, SamplingSettings
from trimtab.rollout.policy.sampler import Completion, Listener, derived_seed
from trimtab.rollout.tokenizer import ChatTemplateError, Message, Tokenizer
from trimtab.rollout.workflows.chat_settings import PLAIN, ChatSettings
from trimtab.rollout.workflows.errors import NoRoom, WorkflowError


class Sampler(Protocol):
    """What completes a conversation: PolicySampler, where there is an engine."""

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion: ...


@dataclass(frozen=True)
class Role:
    """A policy in a part of the workflow."""

    name: str
    policy: str
    tokenizer: Tokenizer
    sampler: Sampler
    sampling: SamplingSettings
    frozen: bool = False
    """Its policy does not learn: what it says need not be scored, and is never sent."""
    credits_turns: bool = False
    """Whether its policy learns by turns, and is told what each of them earned."""
    context_tokens: int | None = None
    """What the policy reads at most; None where only its engine knows."""


@dataclass(frozen=True, eq=False)
class Heard:
    """Words that the policy did not write."""

    token_ids: Sequence[int]
    producer: Producer


@dataclass(eq=False)
class Turn:
    """What the policy said in one go."""

    role: str
    number: int
    """Among all that the role said in the episode, in the order in which it was asked."""
    completion: Completion
    reward: float | None = None
    """What it earned at once, where the workflow says so."""
    interrupted: bool = False
    """A text of the workflow's ended it, and the policy may go on."""

    @property
    def token_ids(self) -> Sequence[int]:
        return self.completion.token_ids


@dataclass(frozen=True, eq=False)
class Recalled:
    """What the policy said elsewhere in the episode, repeated token by token. It was sampled with another beginning, so
    it is never trained here.
    """

    turn: Turn

    @property
    def token_ids(self) -> Sequence[int]:
        return self.turn.token_ids


Piece = Heard | Turn | Recalled


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far a conversation may go. Tokens are all of them: prompt, environment and the policy's own."""

    turns: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if any(limit is not None and limit < 1 for limit in (self.turns, self.tokens)):
            raise WorkflowError(f"max_turns and max_tokens are at least 1, got {self.turns} and {self.tokens}")

    def within(self, context_tokens: int | None) -> Limits:
        """These, and no more tokens than the policy reads."""
        if context_tokens is None or (self.tokens is not None and self.tokens <= context_tokens):
            return self
        return replace(self, tokens=context_tokens)


class Conversation:
    """The tokens of one role in one episode. What it hears is kept back until the policy answers: what got no answer
    teaches nothing, and is no part of the trajectory.
    """

    def __init__(
        self,
        role: Role,
        *,
        seed: int,
        request_id: str,
        time_left: Callable[[], float],
        chat: bool,
        limits: Limits,
        branches: Iterator[int],
        numbers: Iterator[int],
        settings: ChatSettings = PLAIN,
    ) -> None:
        """`branches` and `numbers` count the conversations and the turns of the role in the episode."""
        self.role = role
        self.chat = chat
        self._chat_settings = settings
        self.limits = limits.within(role.context_tokens)
        self.token_ids: list[int] = []
        self.pieces: list[Piece] = []
        self.turns = 0
        self._seed = seed
        self._request_id = request_id
        self._time_left = time_left
        self._branches = branches
        self._branch = next(branches)
        self._numbers = numbers
        self._heard_ids: list[int] = []
        self._heard_messages: list[Message] = []
        self._stopped_by = Finish.STOP
        self._speaking = False

    def hear(self, words: str | Sequence[Message]) -> None:
        """Words that the policy did not write: the prompt at first, the answers of others later.

        In a chat, text is a message of the user's, empty or not. Elsewhere it is taken as it is, and messages are
        refused.
        """
        self._check_silent()
        if not isinstance(words, str):
            if not self.chat:
                raise WorkflowError(f"{self.place}: messages need a chat; hear text, or begin with chat=True")
            self._heard_messages += self._chat_settings.suffixed(words)
        elif self.chat:
            self._heard_messages += self._chat_settings.suffixed([{"role": "user", "content": words}])
        else:
            self._heard_ids += self.role.tokenizer.encode(words + self._chat_settings.suffix)

    async def speak(self, *, stop: str | Sequence[str] = (), max_tokens: int | None = None) -> str:
        """Let the policy answer, and return its words. Raises NoRoom at a limit: look at `over` before.

        `stop` are texts that end this turn, and are part of it, besides what ends all of the policy's; after one of
        them it may speak on. `max_tokens` bounds this turn where the policy's own limit allows more.
        """
        self._check_silent()
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(stop) or (max_tokens is not None and max_tokens < 1):
            raise WorkflowError(
                f"{self.place}: speak() takes texts to stop at and at least 1 token, got {stop} and {max_tokens}"
            )
        heard = self._unanswered()
        if not heard and (not self.token_ids or (self.chat and self._has_ended_its_turn())):
            raise WorkflowError(f"{self.place}: nothing to answer; call hear() before speak()")
        own = self.role.sampling
        room = own.max_new_tokens if max_tokens is None else min(max_tokens, own.max_new_tokens)
        turn = await self._answered(heard, replace(own, stop=(*own.stop, *stop), max_new_tokens=room), seed=None)
        words = self.role.tokenizer.decode(list(turn.token_ids))
        turn.interrupted = turn.completion.finish == "stop" and any(text in words for text in stop)
        return words

    async def speak_after(
        self,
        heard: Sequence[int],
        *,
        sampling: SamplingSettings,
        seed: int | None = None,
        listener: Listener | None = None,
    ) -> Turn:
        """As `speak`, for words that are tokens already, with other settings than the role's. What is drawn follows
        from the episode's seed, unless another is given. The listener hears of tokens while they are sampled: the turn
        begins with them. Raises NoRoom at a limit.
        """
        self._check_silent()
        if self._heard_ids or self._heard_messages:
            raise WorkflowError(f"{self.place}: it has heard words that it did not answer; await speak() before")
        if not heard and not self.token_ids:
            raise WorkflowError(f"{self.place}: nothing to answer; speak_after() needs the tokens of a prompt")
        return await self._answered(heard, sampling, seed=seed, listener=listener)

    async def _answered(
        self, heard: Sequence[int], sampling: SamplingSettings, *, seed: int | None, listener: Listener | None = None
    ) -> Turn:
        if self._no_room(len(heard)):
            raise NoRoom(
                f"{self.place}: {len(self.token_ids) + len(heard)} tokens, at most {self.limits.turns} turns and "
                f"{self.limits.tokens} tokens; look at conversation.over before speak()"
            )
        self._speaking = True
        number = next(self._numbers)
        try:
            completion = await self.role.sampler.complete(
                [*self.token_ids, *heard],
                self._settings(len(heard), sampling, seed=seed),
                request_id=f"{self._request_id}.{self._branch}.{self.turns}",
                deadline_s=self._time_left(),
                listener=listener,
            )
        except EngineError as error:
            raise type(error)(f"{self.place}: {error}") from error
        finally:
            self._speaking = False
        # Taken over only now, all at once: a speak() that failed has left no trace, and may be repeated.
        turn = Turn(self.role.name, number, completion)
        self._take(heard, turn)
        self.turns += 1
        return turn

    def recall(self, turn: Turn) -> None:
        """Go on as if the policy had said here, in answer to what was heard, the very tokens of an earlier turn of its:
        a summary that it wrote of its history, or what a sub-agent came to. They are context, and not trained here.
        """
        self._check_silent()
        if turn.role != self.role.name:
            raise WorkflowError(f"{self.place}: a turn of role {turn.role} cannot be recalled; hear() its words")
        heard = self._unanswered()
        if self.chat and not heard:
            raise WorkflowError(f"{self.place}: in a chat a turn answers something; call hear() before recall()")
        self._take(heard, Recalled(turn))

    def reward_turn(self, reward: float) -> None:
        """What the latest turn earned at once, for policies that learn by turns. Forks share the turn."""
        if not self.spoken:
            raise WorkflowError(f"{self.place}: there is no turn to reward; call speak() before reward_turn()")
        self.spoken[-1].reward = reward

    @property
    def spoken(self) -> tuple[Turn, ...]:
        """Its turns in order, those before a fork included."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Turn))

    def fork(self) -> Conversation:
        """Another conversation with the same beginning, whose next words are drawn anew. Where both are scored, what
        they share is trained once.
        """
        twin = copy.copy(self)
        twin._branch = next(self._branches)
        twin._speaking = False
        twin.token_ids, twin.pieces = list(self.token_ids), list(self.pieces)
        twin._heard_ids, twin._heard_messages = list(self._heard_ids), list(self._heard_messages)
        return twin

    def fork_after(self, turn: Turn) -> Conversation:
        """A fork of what it was when it had just spoken this turn, whatever it has heard and said since."""
        twin = self.fork()
        kept = self.pieces.index(turn) + 1
        twin.pieces = self.pieces[:kept]
        twin.token_ids = self.token_ids[: sum(len(piece.token_ids) for piece in twin.pieces)]
        twin._heard_ids, twin._heard_messages = [], []
        twin.turns = len(twin.spoken)
        twin._stopped_by = Finish(turn.completion.finish)
        return twin

    @property
    def over(self) -> bool:
        """Whether a limit stands in the way of another turn."""
        return self._no_room(len(self._unanswered()))

    @property
    def finish(self) -> Finish:
        """What ended it: the policy itself, or the limit that kept it from answering what it heard last."""
        if not self.pieces or not (self._heard_ids or self._heard_messages):
            return self._stopped_by
        if self.limits.turns is not None and self.turns >= self.limits.turns:
            return Finish.TURNS
        return Finish.LENGTH if self.over else self._stopped_by

    @property
    def place(self) -> str:
        """Where in the episode this is, for error messages."""
        return f"role {self.role.name}, turn {self.turns + 1}"

    def _has_ended_its_turn(self) -> bool:
        last = self.pieces[-1]
        return self._stopped_by is Finish.STOP and not (isinstance(last, Turn) and last.interrupted)

    def _take(self, heard: Sequence[int], said: Turn | Recalled) -> None:
        if heard:
            producer = Producer.ENVIRONMENT if self.pieces else Producer.PROMPT
            self.pieces.append(Heard(tuple(heard), producer))
        self._heard_ids, self._heard_messages = [], []
        self.pieces.append(said)
        self.token_ids += [*heard, *said.token_ids]
        turn = said.turn if isinstance(said, Recalled) else said
        self._stopped_by = Finish(turn.completion.finish)

    def _unanswered(self) -> list[int]:
        """The tokens of what was heard since it last spoke."""
        if not self._heard_messages:
            return self._heard_ids
        tokenizer, settings = self.role.tokenizer, self._chat_settings
        arguments = settings.template_arguments
        try:
            if not self.token_ids:
                return tokenizer.opening(settings.opening(self._heard_messages), arguments=arguments)
            return tokenizer.following(self._heard_messages, last=self.token_ids[-1], arguments=arguments)
        except ChatTemplateError as error:
            raise WorkflowError(str(error)) from error

    def _no_room(self, heard: int) -> bool:
        if self.limits.turns is not None and self.turns >= self.limits.turns:
            return True
        return self.limits.tokens is not None and self.limits.tokens <= len(self.token_ids) + heard

    def _settings(self, heard: int, sampling: SamplingSettings, *, seed: int | None) -> SamplingSettings:
        room = sampling.max_new_tokens
        if self.limits.tokens is not None:
            room = min(room, self.limits.tokens - len(self.token_ids) - heard)
        if seed is None:
            seed = derived_seed(self._seed, self.role.name, self._branch, self.turns)
        return replace(sampling, max_new_tokens=room, seed=seed)

    def _check_silent(self) -> None:
        if self._speaking:
            raise WorkflowError(f"{self.place}: it is still speaking; await speak(), or fork() to speak side by side")
