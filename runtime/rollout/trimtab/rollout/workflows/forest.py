"""From the scored conversations of one role in one episode to its rows: every token that the policy sampled in them is
trained in exactly one, the first that has it, and is an echo in the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.fabric.wire.spans import Producer, Span, merged
from trimtab.fabric.wire.trajectory import MAX_PARTS, MAX_REWARD_PARTS, Finish, TurnReward
from trimtab.rollout.workflows.conversation import Piece, Recalled, Turn
from trimtab.rollout.workflows.errors import WorkflowError
from trimtab.rollout.workflows.team import ScoredConversation

_PART_NAME = re.compile(r"\A[a-z][a-z0-9_.-]{0,63}\Z")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One conversation as its policy learns from it."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """Of the tokens that are trained here."""
    spans: tuple[Span, ...]
    turns: tuple[TurnReward, ...]
    """Those that are trained here."""
    reward: float
    reward_parts: Mapping[str, float]
    finish: Finish


@dataclass(frozen=True, kw_only=True)
class Forest:
    """What one role has to learn from an episode."""

    rows: tuple[Row, ...]
    distinct_tokens: int
    """In the rows, those that several share counted once."""

    @property
    def tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


def forest_of(role: str, scored: Sequence[ScoredConversation]) -> Forest:
    """Raises WorkflowError for what cannot be learnt from, by the name of the role."""
    if len(scored) > MAX_PARTS:
        raise WorkflowError(f"role {role}: {len(scored)} scored conversations, at most {MAX_PARTS} in an episode")
    in_rows: set[Piece] = {turn for one in scored for turn in one.conversation.spoken}
    rows = []
    trained: set[Turn] = set()
    for one in scored:
        rows.append(_row(role, one, trained=trained, in_rows=in_rows))
        spoken = one.conversation.spoken
        if spoken and trained.issuperset(spoken):
            raise WorkflowError(
                f"role {role}: all that scored conversation {len(rows)} says is in earlier ones already; score it "
                "before them, or not at all"
            )
        trained.update(spoken)
    distinct: set[Piece] = {
        piece.turn if isinstance(piece, Recalled) else piece for one in scored for piece in one.conversation.pieces
    }
    return Forest(rows=tuple(rows), distinct_tokens=sum(len(piece.token_ids) for piece in distinct))


def _row(role: str, one: ScoredConversation, *, trained: set[Turn], in_rows: set[Piece]) -> Row:
    conversation = one.conversation
    earned = _earned(role, one)
    logprobs: list[float] = []
    spans: list[Span] = []
    turns: list[TurnReward] = []
    for piece in conversation.pieces:
        length = len(piece.token_ids)
        if not length:
            continue
        if isinstance(piece, Turn) and piece not in trained:
            logprobs += piece.completion.logprobs
            spans += piece.completion.spans
            turns.append(TurnReward(piece.number, length, earned[piece]))
        else:
            spans.append(Span(length, _seen_as(piece, in_rows)))
    return Row(
        token_ids=conversation.token_ids,
        logprobs=logprobs,
        spans=merged(spans),
        # Turns that were asked for side by side may have come in another order than they stand in.
        turns=tuple(sorted(turns, key=lambda turn: turn.number)),
        reward=finite(one.reward, what=f"that of role {role}"),
        reward_parts=_parts(role, one),
        finish=conversation.finish,
    )


def _seen_as(piece: Piece, in_rows: set[Piece]) -> Producer:
    """Of what is not trained here. Words of a conversation that nobody scored are environment: no row trains them."""
    if isinstance(piece, Turn):
        return Producer.ECHO
    if isinstance(piece, Recalled):
        return Producer.ECHO if piece.turn in in_rows else Producer.ENVIRONMENT
    return piece.producer


def _earned(role: str, one: ScoredConversation) -> dict[Turn, float]:
    spoken = one.conversation.spoken
    if one.turn_rewards is None:
        given: Sequence[object] = [0.0 if turn.reward is None else turn.reward for turn in spoken]
    else:
        given = list(one.turn_rewards)
    if len(given) != len(spoken):
        raise WorkflowError(
            f"role {role}: {len(given)} turn_rewards for {len(spoken)} turns; give one for each, also before a fork"
        )
    what = f"that of a turn of role {role}"
    return {turn: finite(reward, what=what) for turn, reward in zip(spoken, given, strict=True)}


def _parts(role: str, one: ScoredConversation) -> dict[str, float]:
    if len(one.reward_parts) > MAX_REWARD_PARTS:
        raise WorkflowError(f"role {role}: {len(one.reward_parts)} reward_parts, at most {MAX_REWARD_PARTS}")
    for name in one.reward_parts:
        if not isinstance(name, str) or not _PART_NAME.match(name):
            raise WorkflowError(
                f"role {role}: a part of the reward is called {name!r:.80}; use up to 64 small letters, digits, '.', "
                "'_' or '-', beginning with a letter"
            )
    return {name: finite(value, what=f"part {name} of role {role}") for name, value in one.reward_parts.items()}


def finite(reward: object, *, what: str) -> float:
    """The reward as a number. Text is refused even where it could be read as one: it was returned by mistake."""
    if not hasattr(type(reward), "__float__"):
        raise WorkflowError(f"a reward, {what}, is a {type(reward).__name__}; return a number")
    value = float(reward)  # type: ignore[arg-type]
    if not math.isfinite(value):
        raise WorkflowError(f"a reward, {what}, is not a finite number: {value}")
    return value
