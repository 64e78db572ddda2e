"""Reads the answers of POST /v1/completions: exact token ids with their logprobs, or a typed refusal.

A trajectory whose tokens were guessed would train a policy on what it never said. So an answer that does not tell its
tokens beyond doubt is worth nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from trimtab.rollout.engines.contract import FIXED_VERSION, EngineError, EngineRefused, Generated
from trimtab.rollout.tokenizer import Tokenizer

_ID_PREFIX = "token_id:"
_BROKEN_CHARACTER = "\ufffd"
_BYTES_PREFIX = "bytes:"
_FINISH: dict[str, Literal["stop", "length", "abort"]] = {"stop": "stop", "length": "length", "abort": "abort"}


class EngineAnswerUnusable(EngineError):
    """It answered, and what it said cannot be trained on: no logprobs, or tokens that are in doubt."""

    kind = "engine-answer-unusable"


def read_completion(answer: dict[str, Any], tokenizer: Tokenizer) -> Generated:
    """The first choice. `tokenizer` is the policy's, for servers that tell their tokens only as text."""
    try:
        choice = answer["choices"][0]
        reason = choice["finish_reason"]
        told = choice.get("token_ids")
        logprobs = choice["logprobs"] or {}
        pieces = [str(piece) for piece in logprobs.get("tokens") or ()]
        values = [float(value) for value in logprobs.get("token_logprobs") or ()]
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise EngineAnswerUnusable(
            f"/v1/completions answered in a shape we do not know: {type(error).__name__} {error}"
        ) from None
    if reason == "content_filter":
        raise EngineRefused("/v1/completions: the endpoint's content filter cut the answer off")
    if reason not in _FINISH:
        raise EngineError(f"/v1/completions ended for a reason we do not know: {reason!r}")
    tokens = _token_ids(told, pieces, text=str(choice.get("text", "")), tokenizer=tokenizer)
    if len(values) != len(tokens):
        raise EngineAnswerUnusable(
            f"/v1/completions answered with {len(values)} logprobs for {len(tokens)} tokens: "
            "it must return the logprob of every sampled token"
        )
    if not all(map(math.isfinite, values)):
        raise EngineAnswerUnusable("/v1/completions answered with a logprob that is not finite")
    return Generated(
        token_ids=tuple(tokens),
        logprobs=tuple(values),
        finish=_FINISH[reason],
        weight_version=FIXED_VERSION,
        weight_runs=None,
    )


def _token_ids(told: Any, pieces: Sequence[str], *, text: str, tokenizer: Tokenizer) -> list[int]:
    """As the server tells them if it does, else by the policy's tokenizer, if that leaves no doubt."""
    if told is not None:
        return _whole_numbers(told, where="token_ids")
    if pieces and all(piece.startswith(_ID_PREFIX) for piece in pieces):
        return _whole_numbers([piece.removeprefix(_ID_PREFIX) for piece in pieces], where="logprobs.tokens")
    return _tokenized(pieces, text=text, tokenizer=tokenizer)


def _whole_numbers(values: Any, *, where: str) -> list[int]:
    try:
        return [int(value) for value in values]
    except (TypeError, ValueError):
        raise EngineAnswerUnusable(f"/v1/completions: {where} are not numbers") from None


def _tokenized(pieces: Sequence[str], *, text: str, tokenizer: Tokenizer) -> list[int]:
    """The pieces together may say more than the text, such as the token that ended it."""
    tokens = tokenizer.encode("".join(pieces) or text)
    if len(tokens) != len(pieces):
        raise EngineAnswerUnusable(
            f"/v1/completions does not tell token ids, and its {len(pieces)} tokens are {len(tokens)} by the policy's "
            "tokenizer: use a server with return_token_ids"
        )
    for token, piece in zip(tokens, pieces, strict=True):
        if not _same(token, piece, tokenizer):
            raise EngineAnswerUnusable(
                f"/v1/completions does not tell token ids, and its token {piece!r} is another by the policy's "
                "tokenizer: use a server with return_token_ids"
            )
    return tokens


def _same(token: int, piece: str, tokenizer: Tokenizer) -> bool:
    """Whether the server's piece of text is this token. Space around it is not compared: some tokenizers leave it out
    when they decode a token by itself. Half a character cannot be compared; the number of tokens has to do.
    """
    if _BROKEN_CHARACTER in piece or piece.startswith(_BYTES_PREFIX):
        return True
    return tokenizer.decode([token]).strip() == piece.strip() or tokenizer.encode(piece) == [token]
