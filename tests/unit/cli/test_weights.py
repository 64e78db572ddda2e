"""`trimtab weights` as far as it goes without a store."""

from __future__ import annotations

import base64
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import structlog
from click.testing import CliRunner, Result

from trimtab.cli.main import main
from trimtab.cli.weights.inspect import tensor_groups
from trimtab.cli.weights.overview import Kind, kind_of, route_text
from trimtab.cli.weights.screen import duration, duration_text, size
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.layout import StateLayout
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.manifest import Piece
from trimtab.weights.store.position import Position


@pytest.fixture(autouse=True)
def _logs_put_back() -> Iterator[None]:
    """Commands configure the logs of their process, which is ours."""
    root = logging.getLogger()
    before = (root.level, sys.excepthook, threading.excepthook)
    handlers, config = list(root.handlers), structlog.get_config()
    yield
    root.level, sys.excepthook, threading.excepthook = before
    root.handlers[:] = handlers
    logging.captureWarnings(capture=False)
    structlog.configure(**config)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, ["weights", *arguments])


@pytest.mark.parametrize(
    ("text", "count"),
    [("17", 17), ("50MB", 50_000_000), ("2GB", 2 * 10**9), ("512KiB", 512 * 1024), ("1.5g", 1_500_000_000), ("8 b", 8)],
)
def test_sizes(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "MB", "-5MB", "5iB", "5XB", "0", "0.1", "1e9", "5 M B"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30.0), ("10m", 600.0), ("1h", 3600.0), ("2d", 172_800.0), ("0.5m", 30.0), ("0s", 0.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1h", "1w", "1h30m", "5M"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        duration(text)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (90.0, "90s"), (600.0, "10m"), (129_600.0, "36h")])
def test_durations_are_told_in_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_wrong_size_is_told_with_its_option(tmp_path: Path) -> None:
    result = run("pull", str(tmp_path), "--rate", "fast")
    assert result.exit_code == 2
    assert "--rate" in result.stderr
    assert "50MB" in result.stderr


@pytest.mark.parametrize("command", ["inspect", "verify", "gc", "fold 1 2", "pull ."])
def test_missing_settings_are_named(command: str) -> None:
    result = run(*command.split())
    assert result.exit_code == 1
    assert "TRIMTAB_OBJECT_STORE__BUCKET" in result.stderr
    assert "Traceback" not in result.output


def test_an_endpoint_that_is_no_url_is_named() -> None:
    result = run("inspect", TRIMTAB_OBJECT_STORE__BUCKET="b", TRIMTAB_OBJECT_STORE__ENDPOINT_URL="nowhere")
    assert result.exit_code == 1
    assert "TRIMTAB_OBJECT_STORE__ENDPOINT_URL" in result.stderr


def test_a_new_key_is_printed_as_environment_with_a_warning() -> None:
    result = run("keygen")
    assert result.exit_code == 0
    lines = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert set(lines) == {"TRIMTAB_WEIGHTS__SIGNING_SEED", "TRIMTAB_WEIGHTS__PUBLIC_KEYS"}
    signer = Signer(lines["TRIMTAB_WEIGHTS__SIGNING_SEED"])
    Verifier([lines["TRIMTAB_WEIGHTS__PUBLIC_KEYS"]]).verify(signer.sign(b"text"), b"text")
    assert "secret" in result.stderr
    assert run("keygen").stdout != result.stdout
    assert len(base64.b64decode(lines["TRIMTAB_WEIGHTS__SIGNING_SEED"])) == 32


def _entry(target: Position, base: Position | None) -> Entry:
    root = f"{target.epoch:032x}{target.version:032x}"
    return Entry(target=target, base=base, manifest="0" * 64, bytes=1000, root=root)


def test_a_fold_is_what_leads_over_other_versions_whatever_their_numbers() -> None:
    anchor, tenth, twentieth = Position(1, 0), Position(1, 10), Position(1, 20)
    dead, resumed = Position(1, 30), Position(2, 20)
    entries = (
        _entry(anchor, None),
        _entry(tenth, anchor),
        _entry(twentieth, tenth),
        _entry(twentieth, anchor),
        _entry(dead, twentieth),
        _entry(resumed, twentieth),
    )
    latest = Latest(epoch=2, newest=resumed, catalogue=entries)
    kinds = [kind_of(entry, latest) for entry in entries]
    assert kinds == [Kind.ANCHOR, Kind.DELTA, Kind.DELTA, Kind.FOLD, Kind.DELTA, Kind.DELTA]
    assert route_text(entries[:4], latest) == "the anchor of version 0 of epoch 1, 2 deltas, 1 fold"


def test_layers_are_one_group_and_small_tensors_share_one() -> None:
    layers = {f"model.layers.{layer}.up.weight": ("BF16", (1 << 12, 1 << 10)) for layer in range(3)}
    layout = StateLayout.of({**layers, "norm.a": ("F32", (8,)), "norm.b": ("F32", (8,)), "none": ("F32", (0,))})
    by_name = {tensor.name: tensor for tensor in layout.tensors}

    def piece(block: int, number: int) -> Piece:
        return Piece(block=block, mode="fast", chunk=0, offset=0, size=number, base=None, digest="0" * 32)

    big = [
        block.index
        for layer in (0, 2)
        for block in layout.blocks
        if block.start >= by_name[f"model.layers.{layer}.up.weight"].start
        and block.end <= by_name[f"model.layers.{layer}.up.weight"].end
    ]
    small = next(block.index for block in layout.blocks if block.dtype == "F32")
    groups = tensor_groups(layout, [piece(small, 5), *(piece(index, 100 + index) for index in big)])
    assert [(group.name, group.tensors, group.blocks, group.of_blocks) for group in groups] == [
        ("model.layers.*.up.weight", 2, 2, 3),
        ("norm.a, norm.b", 2, 1, 1),
    ]
    assert groups[0].bytes == sum(100 + index for index in big)
    assert groups[0].largest == 100 + max(big)
    assert groups[0].modes == {"fast": 2}
