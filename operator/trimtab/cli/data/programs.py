"""Sets of programming problems: what to write, and the cases that a right program passes."""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.cli.data.rows import BadRow, text_of, value_of

_MAX_CASES_BYTES = 256 << 20
_CALLED = ("functional", "function_call")


def deepcoder(row: Mapping[str, Any]) -> dict[str, Any]:
    """`problem` and `tests`: {inputs, outputs, fn_name} as in TACO, or a list of cases as in the other parts."""
    tests = value_of(row, "tests")
    value = _json(tests, column="tests") if isinstance(tests, str) else tests
    starter = row.get("starter_code")
    prompt = _with_starter(text_of(row, "problem"), starter)
    if isinstance(value, Mapping):
        return {"prompt": prompt, "tests": _columns(value)}
    name = _function(row.get("metadata"))
    return {"prompt": prompt, "tests": _cases(value, function=name, column="tests")}


def livecodebench(row: Mapping[str, Any]) -> dict[str, Any]:
    """`question_content`, `starter_code`, and the public and private cases."""
    prompt = _with_starter(text_of(row, "question_content"), row.get("starter_code"))
    cases = [
        *_listed(_json(text_of(row, "public_test_cases"), column="public_test_cases"), column="public_test_cases"),
        *_listed(_private(row.get("private_test_cases")), column="private_test_cases"),
    ]
    return {"prompt": prompt, "tests": _cases(cases, function=_function(row.get("metadata")), column="…_test_cases")}


def _with_starter(problem: str, starter: Any) -> str:
    if not isinstance(starter, str) or not starter.strip():
        return problem
    return f"{problem}\n\nBegin with:\n```python\n{starter.rstrip()}\n```"


def _columns(value: Mapping[str, Any]) -> str:
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise BadRow("column tests: inputs and outputs must be lists of the same length, at least 1")
    name = value.get("fn_name")
    return _written(inputs, outputs, function=name if isinstance(name, str) and name else None)


def _cases(value: Any, *, function: str | None, column: str) -> str:
    cases = _listed(value, column=column)
    if not cases:
        raise BadRow(f"column {column} has no case")
    for number, case in enumerate(cases, start=1):
        if not isinstance(case, Mapping) or "input" not in case or "output" not in case:
            raise BadRow(f"column {column}: case {number} has no input and output")
    kinds = {str(case.get("testtype") or case.get("type") or "stdin") for case in cases}
    if len(kinds) > 1:
        raise BadRow(f"column {column}: cases of several types: {', '.join(sorted(kinds))}")
    name = None
    if kinds <= set(_CALLED):
        name = cases[0].get("fn_name") or _function(cases[0].get("metadata")) or function
        if not isinstance(name, str):
            raise BadRow(f"column {column}: its cases call a function that neither they nor metadata.func_name name")
    return _written([case["input"] for case in cases], [case["output"] for case in cases], function=name)


def _written(inputs: Sequence[Any], outputs: Sequence[Any], *, function: str | None) -> str:
    """As `check: tests` reads it."""
    tests: dict[str, Any] = {"inputs": list(inputs), "outputs": list(outputs)}
    return json.dumps(tests if function is None else {**tests, "fn_name": function}, ensure_ascii=False)


def _listed(value: Any, *, column: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRow(f"column {column} is a {type(value).__name__}: a list of cases is needed")
    return value


def _function(metadata: Any) -> str | None:
    value = _json(metadata, column="metadata") if isinstance(metadata, str) and metadata.strip() else metadata
    name = value.get("func_name") if isinstance(value, Mapping) else None
    return name if isinstance(name, str) and name else None


def _private(given: Any) -> Any:
    """JSON, or, in the lite version, JSON that was pickled, packed by zlib and written in base64."""
    if given is None or given == "":
        return []
    if not isinstance(given, str):
        raise BadRow(f"column private_test_cases is a {type(given).__name__}: a text is needed")
    if given.lstrip().startswith("["):
        return _json(given, column="private_test_cases")
    try:
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(base64.b64decode(given, validate=True), _MAX_CASES_BYTES)
        if unpacking.unconsumed_tail:
            raise BadRow(f"column private_test_cases has over {_MAX_CASES_BYTES >> 20} MiB")
        # A pickle is a program. This reads the one text in it and runs nothing.
        texts = [text for operation, text, _ in pickletools.genops(packed) if "UNICODE" in operation.name]
    except (binascii.Error, zlib.error, ValueError) as error:
        raise BadRow(f"column private_test_cases is neither JSON nor what is made of it: {error}") from None
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise BadRow(f"column private_test_cases holds {len(texts)} texts: one is needed")
    return _json(texts[0], column="private_test_cases")


def _json(text: str, *, column: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"column {column} is no JSON: {error}") from None
