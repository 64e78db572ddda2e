"""A row for people to read: what is known of it, and its text with the model's own words coloured by how likely it
found them. Nothing of a text reaches the terminal that the terminal would act on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.text import Text

from trimtab.cli.printable import printable
from trimtab.cli.samples.choice import StoredRow
from trimtab.cli.samples.pieces import Piece
from trimtab.fabric.wire.spans import Producer
from trimtab.fabric.wire.trajectory import Failed, Scored, Trajectory

_LINES = "\n\t"
# Spaces, which are no control characters, and that writing in Chinese and French is full of.
_SPACES = "\N{NO-BREAK SPACE}\N{IDEOGRAPHIC SPACE}"
_COLOURS = ((0.9, "green"), (0.5, "default"), (0.1, "yellow"), (0.0, "red"))
"""From which probability on."""
_WRITERS = {
    Producer.PROMPT: "prompt",
    Producer.MODEL: "model",
    Producer.ENVIRONMENT: "environment",
    Producer.ECHO: "echo",
}

LEGEND = Text.assemble(
    ("probability of a token: ", "dim"),
    *((f"from {least:.0%}  ", colour) for least, colour in _COLOURS[:-1]),
    ("less", _COLOURS[-1][1]),
)


def lines(row: StoredRow, trajectory: Trajectory, pieces: Sequence[Piece]) -> Iterator[Text]:
    yield Text(" · ".join(_names(trajectory)), style="bold")
    yield Text(" · ".join(_facts(row, trajectory)))
    if isinstance(trajectory.outcome, Failed):
        message = printable(" ".join(trajectory.outcome.message.split()))
        yield Text(f"failed, {trajectory.outcome.error}: {message}", style="red")
    for piece in pieces:
        yield Text(f"── {_label(piece)}", style="cyan")
        yield _coloured(piece)
    yield Text()


def _names(row: Trajectory) -> Iterator[str]:
    yield row.policy if row.role == row.policy else f"{row.policy} as {row.role}"
    of = f"{row.benchmark}, " if row.benchmark is not None else ""
    yield f"{of}sample {row.group_index + 1} of {row.group_size} of prompt {printable(row.prompt_id)}"
    if row.label:
        yield printable(row.label)
    if row.parts > 1:
        yield f"row {row.part + 1} of {row.parts}"


def _facts(stored: StoredRow, row: Trajectory) -> Iterator[str]:
    if isinstance(row.outcome, Scored):
        parts = ", ".join(f"{name} {value:g}" for name, value in row.reward_parts.items())
        yield f"reward {row.outcome.reward:g}" + (f" ({parts})" if parts else "")
    if row.benchmark is None:
        yield "not trained yet" if stored.step is None else f"step {stored.step}"
    if row.oldest_version is not None:
        same = row.oldest_version == row.newest_version
        yield f"version {row.oldest_version}" if same else f"versions {row.oldest_version} to {row.newest_version}"
    yield f"{row.prompt_tokens} + {row.response_tokens} tokens, {row.trained_tokens} of the model's own"
    if isinstance(row.outcome, Scored):
        yield f"ended by {row.outcome.finish}"
    yield f"{row.finished_at - row.started_at:.1f} s at {row.worker}"


def _label(piece: Piece) -> str:
    words = [_WRITERS[piece.producer]]
    if piece.turn is not None:
        words.append(f"turn {piece.turn}")
    if piece.version is not None:
        words.append(f"version {piece.version}")
    count = len(piece.token_ids)
    words.append("1 token" if count == 1 else f"{count} tokens")
    if piece.logprobs:
        words.append(f"logprob {piece.mean_logprob:.2f} on average, {min(piece.logprobs):.2f} at least")
    if piece.reward is not None:
        words.append(f"reward {piece.reward:g}")
    return " · ".join(words)


def _coloured(piece: Piece) -> Text:
    if piece.producer is not Producer.MODEL:
        return Text(_harmless(piece.text), style="dim")
    text = Text()
    for mark in piece.marks:
        probability = math.exp(min(0.0, mark.logprob))
        text.append(_harmless(mark.text), style=next(colour for least, colour in _COLOURS if probability >= least))
    return text


def _harmless(text: str) -> str:
    return printable(text, keep=_LINES + _SPACES)
