"""`trimtab weights inspect`: what has been published, what it costs to fetch, and who holds what.

What a version changed is shown by groups of like tensors: those whose names differ only in the number of their layer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.filesize import decimal
from rich.table import Table

from trimtab.cli.state_folder import state_folder_option
from trimtab.cli.weights.access import REQUEST_DEADLINE_S, OpenWeights, json_option, policy_option, with_weights
from trimtab.cli.weights.overview import Kind, Overview, kind_of, overview
from trimtab.cli.weights.screen import duration_text, output, place_text, plain, print_json
from trimtab.weights.adapters import Adapter, InvalidAdapter, said_in
from trimtab.weights.layout import StateLayout, Tensor
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.manifest import Piece, WeightManifest
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position

_LAYER = re.compile(r"(?<![^.])\d+(?![^.])")
_NAMED = 3


class TensorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """`blocks` of `of_blocks` changed, and `tensors` lie in them. Small tensors of several groups share a block."""

    name: str
    tensors: int
    blocks: int
    of_blocks: int
    modes: dict[str, int]
    bytes: int
    largest: int


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One of the ways to a version: an anchor, a delta or a fold."""

    kind: Kind
    base: Position | None
    target: Position
    bytes: int
    created_at: float
    root: str
    adapter: Adapter | None
    """None for the weights of a whole model."""
    groups: list[TensorGroup]


@click.command()
@policy_option
@state_folder_option
@click.option("--version", type=int, help="Show what this version changed, by groups of tensors.")
@click.option("--epoch", type=int, help="The epoch of --version.  [default: the newest version's]")
@json_option
def inspect(
    policy: str | None, state_folder: Path | None, version: int | None, epoch: int | None, as_json: bool
) -> None:
    """Show the catalogue of published weights, leases and costs.

    Positions are written EPOCH/VERSION. Works without public keys; what only a signed manifest tells is then left out.
    """
    if version is None:
        if epoch is not None:
            raise click.UsageError("--epoch goes with --version")
        found = with_weights(overview, policy=policy, state_folder=state_folder)
        print_json(found) if as_json else _show_overview(found)
    else:
        ways = with_weights(
            lambda weights: _ways(weights, version, epoch),
            policy=policy,
            state_folder=state_folder,
            failures=(InvalidAdapter,),
        )
        print_json(ways) if as_json else _show_ways(ways)


async def _ways(weights: OpenWeights, version: int, epoch: int | None) -> list[Way]:
    reader = ManifestReader(weights.store, weights.policy, weights.needed_verifier())
    latest = await weights.latest()
    if latest.newest is None:
        raise click.ClickException(f"nothing has been published of {weights.policy} yet")
    position = Position(latest.newest.epoch if epoch is None else epoch, version)
    entries = [entry for entry in latest.catalogue if entry.target == position]
    if not entries:
        raise click.ClickException(f"{position} is not in the catalogue; without --version inspect lists what is")
    ways = []
    for entry in entries:
        manifest = await reader.read(entry, deadline_s=REQUEST_DEADLINE_S)
        layout = await _layout_of(manifest, latest, reader)
        if manifest.pieces and manifest.pieces[-1].block >= len(layout.blocks):
            raise click.ClickException(f"{entry} has blocks that its layout has not; `trimtab weights verify --deep`")
        ways.append(
            Way(
                kind=kind_of(entry, latest),
                base=entry.base,
                target=entry.target,
                bytes=entry.bytes,
                created_at=manifest.created_at,
                root=manifest.root,
                adapter=said_in(layout.metadata),
                groups=tensor_groups(layout, manifest.pieces),
            )
        )
    return ways


async def _layout_of(manifest: WeightManifest, latest: Latest, reader: ManifestReader) -> StateLayout:
    """Names of tensors stand only in anchors."""
    for entry in reversed(latest.catalogue):
        if entry.base is None:
            anchor = await reader.read(entry, deadline_s=REQUEST_DEADLINE_S)
            if anchor.header is not None and anchor.layout == manifest.layout:
                return StateLayout.parse(anchor.header)
    raise click.ClickException(f"no anchor has the tensors of {manifest.target}, so their names are not known")


def tensor_groups(layout: StateLayout, pieces: Sequence[Piece]) -> list[TensorGroup]:
    """Those with changes, the largest first."""
    names = {block.index: _group_name(list(layout.tensors_in(block))) for block in layout.blocks}
    of_blocks = Counter(names.values())
    by_group: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_group.setdefault(names[piece.block], []).append(piece)
    groups = [
        TensorGroup(
            name=name,
            tensors=len({tensor.name for piece in found for tensor in layout.tensors_in(layout.blocks[piece.block])}),
            blocks=len(found),
            of_blocks=of_blocks[name],
            modes=dict(Counter(piece.mode for piece in found)),
            bytes=sum(piece.size for piece in found),
            largest=max(piece.size for piece in found),
        )
        for name, found in by_group.items()
    ]
    return sorted(groups, key=lambda group: group.bytes, reverse=True)


def _group_name(tensors: Sequence[Tensor]) -> str:
    names = list(dict.fromkeys(_LAYER.sub("*", tensor.name) for tensor in tensors))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _show_overview(found: Overview) -> None:
    console = output()
    newest = f"newest {place_text(found.newest)}" if found.newest else "nothing published yet"
    console.print(f"[bold]{plain(found.policy)}[/bold]  epoch {found.epoch}, {newest}")
    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "from", "to", "size", "created", "chunks", "blocks"):
        table.add_column(heading, justify="right" if heading in ("size", "chunks") else "left")
    for row in found.entries:
        table.add_row(
            row.kind,
            place_text(row.base),
            place_text(row.target),
            decimal(row.bytes),
            _time_text(row.created_at),
            "" if row.chunks is None else str(row.chunks),
            plain(row.problem) if row.problem else _modes_text(row.blocks or {}),
            style="red" if row.problem else None,
        )
    console.print(table)
    if not found.signatures_checked:
        console.print("signatures were not checked: that needs TRIMTAB_WEIGHTS__PUBLIC_KEYS", style="yellow")
    total = ", ".join(f"{kind}s {decimal(size)}" for kind, size in found.bytes_by_kind.items())
    console.print(f"total    {total or 'nothing'}")
    if found.average_delta_bytes is not None and found.anchor_bytes:
        share = found.average_delta_bytes / found.anchor_bytes
        console.print(f"deltas   {decimal(int(found.average_delta_bytes))} on average, {share:.2%} of an anchor")
    joiner = f"{decimal(found.joiner.bytes)}: {found.joiner.words}" if found.joiner else "no way in; publish an anchor"
    console.print(f"joiners  {joiner}")
    for lease in found.leases:
        held = f"holds {place_text(lease.held)}" if lease.held else "holds nothing"
        pins = f", reads {lease.pins} manifests" if lease.pins else ""
        console.print(f"lease    {plain(lease.member)} {held}{pins}, written {duration_text(lease.age_s)} ago")
    if not found.leases:
        console.print("leases   none live")


def _show_ways(ways: list[Way]) -> None:
    console = output()
    for way in ways:
        begin = f" from {place_text(way.base)}" if way.base else ""
        console.print(
            f"[bold]{way.kind}{begin} to {place_text(way.target)}[/bold]  {decimal(way.bytes)}, "
            f"created {_time_text(way.created_at)}"
        )
        console.print(f"state {way.root}", style="dim")
        if way.adapter is not None:
            to = ", ".join(way.adapter.targets)
            console.print(plain(f"adapters of rank {way.adapter.rank} for {to} of {way.adapter.base}"))
        table = Table(box=None, pad_edge=False)
        for heading in ("tensors", "count", "blocks changed", "size", "largest", "modes"):
            table.add_column(heading, justify="left" if heading in ("tensors", "modes") else "right")
        for group in way.groups:
            table.add_row(
                plain(group.name),
                str(group.tensors),
                f"{group.blocks} of {group.of_blocks}",
                decimal(group.bytes),
                decimal(group.largest),
                _modes_text(group.modes),
            )
        console.print(table if way.groups else "no tensor changed")


def _modes_text(modes: dict[str, int]) -> str:
    return ", ".join(f"{count} {mode}" for mode, count in sorted(modes.items()))


def _time_text(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
