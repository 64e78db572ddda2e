"""`trimtab samples`: which rows are shown, in which words, and what a file of them holds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet
import pytest
from rich.console import Console

from tests.support.cli.rows import ESCAPE, conversation, make_tokenizer
from trimtab.cli.samples.choice import NothingChosen, Order, StoredRow, Wanted, chosen, with_steps
from trimtab.cli.samples.export import record_of, writer_to
from trimtab.cli.samples.pieces import Decode, Piece, pieces
from trimtab.cli.samples.screen import lines
from trimtab.cli.samples.tokenizers import Tokenizers
from trimtab.fabric.wire.header import TrajectoryHeader
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.spans import Producer
from trimtab.fabric.wire.trajectory import Failed, Finish, Scored, Trajectory, TurnReward


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Decode:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    return Tokenizers(named=None, known={"solver": str(folder)}).decode("solver")


def shown(row: Trajectory, decode: Decode, *, colours: bool = False, step: int | None = 41) -> str:
    console = Console(width=80, highlight=False, color_system="standard" if colours else None, force_terminal=colours)
    with console.capture() as capture:
        for line in lines(stored(row, step=step), row, pieces(row, decode)):
            console.print(line, soft_wrap=True)
    return capture.get()


def stored(row: Trajectory, *, sequence: int = 1, step: int | None = None) -> StoredRow:
    header = TrajectoryHeader.of(row)
    return StoredRow(sequence=sequence, trajectory_id=row.trajectory_id, header=header, step=step)


def scored(sequence: int, reward: float, *, step: int | None = None, **changes: Any) -> StoredRow:
    row = conversation(outcome=Scored(reward=reward, finish=Finish.STOP), **changes)
    return stored(row, sequence=sequence, step=step)


def test_a_row_is_told_apart_into_turns_and_versions(decode: Decode) -> None:
    found = pieces(conversation(), decode)
    assert [(piece.producer, piece.turn, piece.version, piece.text) for piece in found] == [
        (Producer.PROMPT, None, None, "<|user|>hello there<|end|>"),
        (Producer.MODEL, 1, 7, " four<|end|>"),
        (Producer.ENVIRONMENT, None, None, "<|user|>\nhello<|end|>"),
        (Producer.MODEL, 2, 8, "helloé"),
        (Producer.MODEL, 2, 9, " four<|end|>"),
    ]
    # The halves of a character are one mark, as unlikely as the less likely of them.
    assert [(mark.text, round(mark.logprob, 2)) for mark in found[3].marks] == [("hello", -1.01), ("é", -2.01)]


def test_rewards_of_turns_stand_at_their_turns(decode: Decode) -> None:
    said = ((Producer.PROMPT, "hello", None), (Producer.MODEL, " four~hello~ there", 3))
    row = conversation(said, turn_rewards=(TurnReward(0, 1, 0.5), TurnReward(3, 2, -1.0)))
    found: list[Piece] = pieces(row, decode)[1:]
    assert [(piece.turn, piece.text, piece.reward) for piece in found] == [(1, " four", 0.5), (2, "hello there", -1.0)]


def test_a_row_reads_with_its_reward_its_parts_its_step_and_its_versions(decode: Decode) -> None:
    row = conversation(reward_parts={"answer": 1.0, "format": -0.25})
    text = shown(row, decode)
    for part in (
        *("solver · sample 4 of 8 of prompt gsm8k/train/17", "reward 0.75 (answer 1, format -0.25)", "step 41"),
        *("versions 7 to 9", "4 + 11 tokens, 7 of the model's own", "ended by stop", "4.2 s at quickstart-pool-a-0"),
        *(
            "── prompt · 4 tokens",
            "── model · turn 2 · version 9 · 2 tokens · logprob -2.76 on average, -3.01 at least",
        ),
        *("── environment · 4 tokens", "<|user|>hello there<|end|>"),
    ):
        assert part in text, part
    assert "not trained yet" in shown(row, decode, step=None)


def test_colours_tell_likely_words_from_unlikely_ones_and_only_where_there_are_colours(decode: Decode) -> None:
    text = shown(conversation(), decode, colours=True)
    assert "\x1b[32m four\x1b[0m" in text, "a token of 99 % is green"
    assert "\x1b[31mé\x1b[0m" in text or "\x1b[33mé\x1b[0m" in text
    assert "\x1b" not in shown(conversation(), decode)


def test_nothing_that_a_model_says_controls_the_terminal(decode: Decode) -> None:
    row = conversation(((Producer.PROMPT, "hello", None), (Producer.MODEL, f"{ESCAPE}~ \u202egnorw~\n", 3)))
    text = shown(row, decode)
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert r"\x1b]0;owned\x07 \u202egnorw" in text


def test_a_failed_row_says_what_went_wrong(decode: Decode) -> None:
    row = conversation(outcome=Failed(error="workflow-error", message="no \x1b[2J tool"))
    assert r"failed, workflow-error: no \x1b[2J tool" in shown(row, decode)


def test_the_newest_the_best_and_the_worst() -> None:
    rows = [scored(1, 0.5), scored(2, 1.0), scored(3, 0.0), scored(4, 1.0)]
    assert [row.sequence for row in chosen(rows, Wanted(limit=2))] == [4, 3]
    assert [row.sequence for row in chosen(rows, Wanted(order=Order.BEST))] == [4, 2, 1, 3]
    assert [row.sequence for row in chosen(rows, Wanted(order=Order.WORST, limit=1))] == [3]


def test_a_step_and_a_policy_that_have_no_row_are_answered_with_those_that_have() -> None:
    rows = [scored(1, 0.5, step=3), scored(2, 1.0, step=5), scored(3, 0.0)]
    assert [row.sequence for row in chosen(rows, Wanted(step=5))] == [2]
    with pytest.raises(NothingChosen, match=r"step 40 .* those of steps 3 to 5"):
        chosen(rows, Wanted(step=40))
    with pytest.raises(NothingChosen, match=r"no row of judge; there are those of solver"):
        chosen(rows, Wanted(policy="judge"))


def test_evaluations_are_shown_when_they_are_asked_for_and_failures_are_neither_best_nor_worst() -> None:
    failed = stored(conversation(outcome=Failed(error="workflow-error")), sequence=2)
    rows = [scored(1, 0.5, purpose=Purpose.EVALUATION, benchmark="held-out"), failed, scored(3, 0.0)]
    assert [row.sequence for row in chosen(rows, Wanted())] == [3, 2]
    assert [row.sequence for row in chosen(rows, Wanted(order=Order.WORST))] == [3]
    assert [row.sequence for row in chosen(rows, Wanted(benchmark="held-out"))] == [1]
    with pytest.raises(NothingChosen, match="there are those of held-out"):
        chosen(rows, Wanted(benchmark="aime"))
    with pytest.raises(NothingChosen, match="no step is trained on answers"):
        chosen(rows, Wanted(benchmark="held-out", step=4))


def test_of_a_task_that_was_repeated_one_run_was_trained() -> None:
    """Steps are counted from 1, as the view counts them."""
    one = {"group_size": 1, "group_index": 0}
    rows = [scored(number, 1.0, run=run, **one) for number, run in ((1, "a"), (2, "b"))]
    found = with_steps([(row.sequence, row.trajectory_id, row.header) for row in rows], {("solver", "t-42/solver"): 39})
    assert [row.step for row in found] == [40, None]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_file_holds_what_the_row_held(ending: str, decode: Decode, tmp_path: Path) -> None:
    row = conversation(reward_parts={"answer": 1.0}, turn_rewards=(TurnReward(0, 2, 0.5), TurnReward(3, 5, -1.0)))
    other = conversation(outcome=Failed(error="workflow-error", message="none"), prompt_id="p-2")
    file = tmp_path / f"rows.{ending}"
    with writer_to(file) as writer:
        assert not file.exists(), "it appears when it is whole"
        for one in (row, other):
            writer.add(record_of(stored(one, step=41), one, pieces(one, decode)))
    if ending == "jsonl":
        first, second = map(json.loads, file.read_text().splitlines())
    else:
        first, second = pyarrow.parquet.read_table(file).to_pylist()
    assert (first["step"], first["reward"], first["finish"], first["error"]) == (41, 0.75, "stop", None)
    assert first["reward_parts"] == [{"name": "answer", "reward": 1.0}]
    assert first["turn_rewards"] == [{"turn": 1, "reward": 0.5}, {"turn": 2, "reward": -1.0}]
    assert [piece["producer"] for piece in first["pieces"]][:2] == ["prompt", "model"]
    assert [token for piece in first["pieces"] for token in piece["token_ids"]] == row.token_ids.tolist()
    said = [logprob for piece in first["pieces"] for logprob in piece["logprobs"]]
    assert all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(said, row.logprobs.tolist(), strict=True))
    assert (second["reward"], second["error"], second["prompt_id"]) == (None, "workflow-error: none", "p-2")
    assert [entry.name for entry in tmp_path.iterdir()] == [file.name]


def test_what_cannot_be_written_is_refused_before_rows_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    for output in (tmp_path / "rows.csv", tmp_path / "none" / "rows.jsonl", tmp_path / "mine"):
        with pytest.raises(click.BadParameter), writer_to(output):
            pytest.fail("nothing may be written")


def test_a_tokenizer_that_is_not_known_is_asked_for() -> None:
    with pytest.raises(click.ClickException, match="--tokenizer"):
        Tokenizers(named=None, known={}).decode("solver")
