"""`trimtab quarantine` shows what people need, and nothing that a user's error could do to their terminal."""

from __future__ import annotations

import json

from rich.console import Console

from tests.support.fabric.wire_specimens import quarantined, task
from trimtab.cli.quarantine import detailed, listed
from trimtab.fabric.wire.quarantine import QuarantinedTask


def shown(*entries: QuarantinedTask) -> list[str]:
    console = Console(width=140, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(listed(entries))
    return capture.get().splitlines()


def test_the_newest_comes_first_with_its_facts_on_one_line() -> None:
    older = quarantined(task_id="t-1", message="old")
    newer = quarantined(task_id="t-2", quarantined_at=1_700_000_060.0, message="first\nsecond [bold]third[/bold]")
    header, *rows = shown(older, newer)
    assert header.split() == ["task", "prompt", "error", "attempts", "worker", "when", "message"]
    assert [row.split()[0] for row in rows] == ["t-2", "t-1"]
    for part in ("gsm8k/train/17", "workflow-error", " 5 ", "quickstart-pool-a-0", "2023-11-14 22:14:20"):
        assert part in rows[0], part
    assert "first second [bold]third[/bold]" in rows[0]


def test_a_long_message_is_cut_in_the_table_and_whole_in_detail() -> None:
    entry = quarantined(message="word " * 300 + "END")
    (_, row) = shown(entry)
    assert len(row) <= 140
    assert "END" not in row
    assert "END" in detailed(entry)


def test_control_characters_are_replaced() -> None:
    entry = quarantined(message="a\x1b[2Jb", prompt_id="p\x07")
    for text in (*shown(entry), detailed(entry)):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_detail_ends_with_the_prompt_as_json() -> None:
    text = detailed(quarantined(message="first\nsecond"))
    for part in ("t-42", "gsm8k/train/17", "workflow-error", "quickstart-pool-a-0, pool pool-a", "first", "second"):
        assert part in text, part
    assert json.loads(text[text.index("{") :]) == task().prompt


def test_detail_says_when_there_is_no_prompt() -> None:
    text = detailed(quarantined(task_id="sequence-3", prompt_id=None, task=None, error="task-unreadable"))
    assert "sequence-3" in text
    assert "not kept" in text
