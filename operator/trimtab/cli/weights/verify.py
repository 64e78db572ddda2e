"""`trimtab weights verify`: whether everything that has been published is there, genuine and what it claims to be."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext
from pathlib import Path

import click
import msgspec
from rich.filesize import decimal

from trimtab.cli.state_folder import state_folder_option
from trimtab.cli.weights.access import (
    REQUEST_DEADLINE_S,
    OpenWeights,
    json_option,
    policy_option,
    scratch_folder,
    with_weights,
)
from trimtab.cli.weights.screen import byte_bar, count_bar, output, plain, print_json
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.position import Position
from trimtab.weights.verification import (
    CheckedStates,
    Fault,
    FaultKind,
    check_chunks,
    check_manifests,
    check_states,
    still_wanted,
)

EXIT_FAULTS = 1
_PARALLEL = 8
_MOST_THREADS = 16
_CHUNK_DEADLINE_S = 600.0


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    kind: FaultKind
    base: Position | None
    target: Position
    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`confirmed_blocks` were decoded; None unless that was asked for."""

    policy: str
    manifests: int
    chunks: int
    bytes: int
    confirmed_blocks: int | None
    unconfirmed: list[str]
    faults: list[FaultRow]


@click.command()
@policy_option
@state_folder_option
@click.option(
    "--deep", is_flag=True, help="Also decode every block of every version; needs room in TMPDIR for all chunks."
)
@json_option
@click.pass_context
def verify(context: click.Context, policy: str | None, state_folder: Path | None, deep: bool, as_json: bool) -> None:
    """Check every manifest and chunk of the catalogue.

    Exits 1 and lists what is missing, damaged, wrongly signed, or leads to another state than it claims. It only reads.
    """
    verdict = with_weights(lambda weights: _verdict(weights, deep=deep), policy=policy, state_folder=state_folder)
    print_json(verdict) if as_json else _show(verdict)
    context.exit(EXIT_FAULTS if verdict.faults else 0)


async def _verdict(weights: OpenWeights, *, deep: bool) -> Verdict:
    verifier, latest = weights.needed_verifier(), await weights.latest()
    manifests = await check_manifests(
        weights.store, weights.policy, verifier, latest, parallel=_PARALLEL, deadline_s=REQUEST_DEADLINE_S
    )
    wanted = manifests.chunks()
    total = sum(chunk.size for chunk, _ in wanted.values())
    largest = max((chunk.size for chunk, _ in wanted.values()), default=0)
    with scratch_folder(total if deep else largest * _PARALLEL) as scratch:
        with byte_bar("checking chunks") as progress:
            chunks = await check_chunks(
                weights.store, manifests, spool=scratch, keep=deep, parallel=_PARALLEL, deadline_s=_CHUNK_DEADLINE_S,
                progress=progress,
            )  # fmt: skip
        states = CheckedStates(0, (), ())
        with count_bar("decoding blocks") if deep else nullcontext() as decoded:
            if deep:
                threads = min(_MOST_THREADS, os.cpu_count() or 1)
                states = await asyncio.to_thread(
                    check_states, manifests, chunks.kept, threads=threads, progress=decoded
                )
    found = (*manifests.faults, *chunks.faults, *states.faults)
    wrong = {fault.entry for fault in found}
    faults = still_wanted(found, await weights.latest()) if found else ()
    return Verdict(
        policy=weights.policy,
        manifests=len(manifests.genuine),
        chunks=len(wanted),
        bytes=total,
        confirmed_blocks=states.confirmed if deep else None,
        unconfirmed=[str(entry) for entry in states.unconfirmed if entry not in wrong],
        faults=[_row(fault, fault.entry) for fault in faults],
    )


def _row(fault: Fault, entry: Entry) -> FaultRow:
    return FaultRow(kind=fault.kind, base=entry.base, target=entry.target, reason=fault.reason)


def _show(verdict: Verdict) -> None:
    console = output()
    for fault in verdict.faults:
        what = "anchor" if fault.base is None else f"delta from {fault.base}"
        console.print(f"[red]{fault.kind}[/red]: {what} to {fault.target}: {plain(fault.reason)}", soft_wrap=True)
    if verdict.unconfirmed:
        console.print(
            "not decoded, because the weights they build on are not in the store or not sound:", style="yellow"
        )
        for entry in verdict.unconfirmed:
            console.print(f"  {entry}")
    checked = f"{verdict.manifests} manifests, {verdict.chunks} chunks, {decimal(verdict.bytes)}"
    if verdict.confirmed_blocks is not None:
        checked += f", {verdict.confirmed_blocks} blocks decoded"
    count = len(verdict.faults)
    outcome = f"[red]{count} fault{'s' if count > 1 else ''}[/red]" if count else "[green]sound[/green]"
    console.print(f"{plain(verdict.policy)}: {checked}: {outcome}")
