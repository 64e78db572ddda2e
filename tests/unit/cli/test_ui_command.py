"""How `trimtab ui` is called, and the token that it keeps."""

from __future__ import annotations

import socket
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from trimtab.cli.ui import ui
from trimtab.cli.ui.access_token import kept_token


def test_the_token_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    token = kept_token(environment)
    file = tmp_path / "trimtab" / "ui-token"
    assert len(token) == 43
    assert file.stat().st_mode & 0o777 == 0o600
    assert kept_token(environment) == token


@pytest.mark.parametrize("spoiled", ["short", "opened"])
def test_a_token_that_others_could_know_is_not_used(tmp_path: Path, spoiled: str) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    token = kept_token(environment)
    file = tmp_path / "trimtab" / "ui-token"
    if spoiled == "short":
        file.write_text("guess")
    else:
        file.chmod(0o644)
    assert kept_token(environment) not in (token, "guess")


def test_a_folder_that_takes_no_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(click.ClickException, match="XDG_CACHE_HOME"):
        kept_token({"XDG_CACHE_HOME": str(tmp_path / "file")})


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = CliRunner().invoke(ui, [str(tmp_path), "--port", str(port)], env={"XDG_CACHE_HOME": str(tmp_path)})
    assert said.exit_code == 1
    assert f"127.0.0.1:{port} cannot be listened on" in said.output


def test_options_of_a_cluster_need_one() -> None:
    said = CliRunner().invoke(ui, ["--namespace", "team"])
    assert said.exit_code == 2
    assert "give --kube" in said.output
