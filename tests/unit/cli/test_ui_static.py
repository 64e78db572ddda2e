"""The page's files: those of others are as they were published; none asks the network, or makes markup of data."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from trimtab.cli.ui.guard import HEADERS
from trimtab.cli.ui.static_files import FOLDER, static_files

VENDOR = FOLDER / "vendor"
OWN = sorted(path for path in FOLDER.iterdir() if path.suffix in (".js", ".html", ".css"))


def test_files_of_others_are_as_they_were_published_and_have_their_licences() -> None:
    named = json.loads((VENDOR / "vendored.json").read_text())
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del there["vendored.json"]
    assert {name: one["sha256"] for name, one in named.items()} == there
    for one in named.values():
        assert f"{one['package']}.LICENSE" in there


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_nothing_is_made_of_markup_and_nothing_comes_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    markup = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet|eval\(|new Function|srcdoc|javascript:"
    )
    assert not re.search(markup, text)
    assert not re.search(r"(?:https?:)?//[a-z]+\.", text)
    assert not re.search(r"<script>|<style|\sstyle=|\son[a-z]+=\"", text)


def test_every_file_that_is_named_is_there() -> None:
    served = static_files()
    for path in OWN:
        for name in re.findall(r"/static/([\w./-]+)", path.read_text(encoding="utf-8")):
            assert name in served, f"{path.name} names {name}"


def test_the_policy_lets_a_page_run_nothing_but_these() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
