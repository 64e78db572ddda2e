"""The end of a log as a sentence, whoever wrote it."""

from __future__ import annotations

import json
import traceback

import pytest

from trimtab.operator.plan.troubles import log_sentence


def line(event: str, level: str = "error", **fields: str) -> str:
    return json.dumps({"event": event, "level": level, "job": "quickstart", **fields})


def test_what_is_misconfigured_is_told_as_it_is() -> None:
    log = [line("starting", "info"), line("job_misconfigured", reason="prompts.jsonl, line 3: not JSON")]
    assert log_sentence("\n".join(log)) == "prompts.jsonl, line 3: not JSON"


def test_what_follows_the_last_error_is_only_the_end_of_processes() -> None:
    """torchrun complains about its rank, which has said why."""
    log = [line("job_misconfigured", reason="policies[solver].model.uri: …"), line("gone", "info"), "E1117 failed (78)"]
    assert log_sentence("\n".join(log)) == "policies[solver].model.uri: …"


def test_of_a_traceback_the_exception_is_told() -> None:
    several = ExceptionGroup("several", [ZeroDivisionError("division by zero")])
    trace = "".join(traceback.format_exception(several))
    text = log_sentence(line("uncaught exception", "critical", exception=trace))
    assert text == "ZeroDivisionError: division by zero"


def test_other_events_are_told_with_their_detail() -> None:
    assert log_sentence(line("sglang_not_ready", reason="no answer")) == "sglang not ready: no answer"
    assert log_sentence(line("out of luck")) == "out of luck"


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("out of luck\n", "out of luck"),
        ("1\n2\n3\n\n4\n", "2\n3\n4"),
        (line("pod_started", "info"), ""),
        ('{"half a line', '{"half a line'),
        ('{"no": "event"}', '{"no": "event"}'),
        ("[" * 100_000, "[" * 2000),
        ("", ""),
    ],
    ids=["plain", "the last lines", "nothing said", "cut", "another's JSON", "nonsense", "empty"],
)
def test_logs_of_others(tail: str, expected: str) -> None:
    assert log_sentence(tail) == expected
