"""What holds for all commands."""

from __future__ import annotations

from importlib.metadata import version

from click.testing import CliRunner

from trimtab.cli.main import main


def test_it_says_its_version() -> None:
    said = CliRunner().invoke(main, ["--version"])
    assert version("trimtab") in said.output


def test_shells_complete_commands_and_options() -> None:
    for words, expected in (("trimtab sam", "plain,samples"), ("trimtab samples --wor", "plain,--worst")):
        environment = {"_TRIMTAB_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        said = CliRunner().invoke(main, [], env=environment, prog_name="trimtab")
        assert said.output.split() == [expected]
