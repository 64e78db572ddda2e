"""No input crashes the manifest reader or the checker, and nothing it lets pass is left unread. TRIMTAB_FUZZ_EXAMPLES
deepens it."""

from __future__ import annotations

import json
import os
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.api.complete import complete_job, complete_pool, complete_trainer, variants
from tests.support.api.manifests import job, pool, trainer
from tests.support.api.mutations import mutated
from trimtab.api.manifest import UnreadableManifestError, read_manifest
from trimtab.api.validation import parse, problems

EXAMPLES = int(os.environ.get("TRIMTAB_FUZZ_EXAMPLES", "300"))
fuzz = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)
WORDS = st.sampled_from(
    ["apiVersion", "kind", "metadata", "name", "spec", "data", "pools", "policies", "engine", "replicas"]
)
KEYS = WORDS | st.text(max_size=8)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
YAML_PIECES = st.lists(
    st.sampled_from(
        [
            "a",
            ":",
            " ",
            "\n",
            "- ",
            "? ",
            "&a ",
            "*a",
            "<<",
            "!!str ",
            "!x ",
            "{",
            "}",
            "[",
            "]",
            ",",
            "|",
            ">",
            "'",
            '"',
        ]
    )
    | st.sampled_from(
        ["#", "---\n", "...\n", "%YAML 1.1\n", "\t", "1", "1e9", ".inf", "~", "\\", "é", "\x00", "\ufeff"]
    ),
    max_size=30,
).map("".join)
VALID = [job(), pool(), trainer(), complete_job(), complete_pool(), complete_trainer(), *variants()]


def _read_or_refuse(data: bytes) -> None:
    try:
        documents = read_manifest(data)
    except UnreadableManifestError:
        return
    for document in documents:
        _accept_or_refuse(document.value)


def _accept_or_refuse(value: Any) -> None:
    found = problems(value)
    if found:
        assert all(problem.message for problem in found)
        return
    _assert_all_read(value["spec"], parse(value).model_dump(mode="json")["spec"])


def _assert_all_read(written: Any, read: Any) -> None:
    """Everything that was written is there in what was read."""
    if isinstance(written, dict):
        for key, item in written.items():
            if item is not None:
                _assert_all_read(item, read[key])
    elif isinstance(written, list):
        assert len(written) == len(read)
        for left, right in zip(written, read, strict=True):
            _assert_all_read(left, right)
    else:
        assert written == read
        assert isinstance(written, bool) == isinstance(read, bool)


@fuzz
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    _read_or_refuse(data)


@fuzz
@given(YAML_PIECES)
def test_any_yaml_like_text(text: str) -> None:
    _read_or_refuse(text.encode())


@fuzz
@given(TREES)
def test_any_tree_of_values(tree: Any) -> None:
    _accept_or_refuse(tree)
    _read_or_refuse(json.dumps(tree).encode())


@fuzz
@given(TREES)
def test_json_reads_back_unchanged(tree: Any) -> None:
    text = json.dumps({"value": tree})
    assert [document.value for document in read_manifest(text.encode())] == [{"value": tree}]


@fuzz
@given(TREES, st.sampled_from(VALID))
def test_any_spec_in_a_proper_envelope(tree: Any, manifest: dict[str, Any]) -> None:
    _accept_or_refuse({**manifest, "spec": tree})
    _accept_or_refuse({**manifest, "metadata": tree})


@fuzz
@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from(VALID))
def test_damaged_manifests(seed: int, times: int, manifest: dict[str, Any]) -> None:
    rng = random.Random(seed)
    for _ in range(times):
        if not isinstance(manifest.get("spec"), (dict, list)) or not manifest["spec"]:
            break
        manifest = mutated(manifest, rng)
    _accept_or_refuse(manifest)
    _read_or_refuse(json.dumps(manifest).encode())
