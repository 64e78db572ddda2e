"""Pages are true: their links lead somewhere, tests that they name exist, and so do the commands of the README."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from trimtab.cli.main import main

_ROOT = Path(__file__).resolve().parents[3]
_PAGES = [
    _ROOT / "README.md",
    _ROOT / "CONTRIBUTING.md",
    *sorted((_ROOT / "docs").rglob("*.md")),
    *sorted((_ROOT / "examples").rglob("*.md")),
]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{target} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in map(_slug, headings), f"{target} has no section {anchor}"


def _slug(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_the_security_page_names_tests_that_exist() -> None:
    text = (_ROOT / "docs/security.md").read_text(encoding="utf-8")
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (_ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 10
    assert {name for name in named if f"def {name}(" not in tests} == set()
    files = set(re.findall(r"`(?:[\w/]*/)?(test_\w+\.py)`", text))
    assert {name for name in files if not list((_ROOT / "tests").rglob(name))} == set()


def test_commands_of_the_readme_exist() -> None:
    named = re.findall(
        r"^\| `trimtab ([a-z -]+)", (_ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert len(named) > 5
    for words in map(str.split, named):
        command: click.Command = main
        for word in words:
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"trimtab {' '.join(words)}"
            command = found
