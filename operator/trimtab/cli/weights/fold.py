"""`trimtab weights fold`: one delta over many versions, for pools that were away, made from what the store has."""

from __future__ import annotations

import socket
import time
import uuid
from pathlib import Path

import click
from rich.filesize import decimal

from trimtab.cli.state_folder import state_folder_option
from trimtab.cli.weights.access import OpenWeights, policy_option, scratch_folder, with_weights
from trimtab.cli.weights.screen import phase_bars
from trimtab.weights.assembly import WrongWeights
from trimtab.weights.folding import FoldPlan, FoldRefused, FoldWriter, plan_fold
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.position import Position

_DEADLINE_S = 6 * 3600.0


@click.command()
@click.argument("start", metavar="FROM", type=click.IntRange(min=0))
@click.argument("end", metavar="TO", type=click.IntRange(min=0))
@policy_option
@state_folder_option
@click.option("--epoch", type=int, help="The epoch of both versions.  [default: the newest version's]")
def fold(start: int, end: int, policy: str | None, state_folder: Path | None, epoch: int | None) -> None:
    """Publish a delta that leads from version FROM to version TO at once.

    Needs the signing seed, and room in TMPDIR for the chunks of an anchor and of the deltas. A trainer may go on
    publishing at the same time.
    """
    plan, entry = with_weights(
        lambda weights: _folded(weights, start, end, epoch),
        policy=policy,
        state_folder=state_folder,
        failures=(FoldRefused, WrongWeights),
    )
    singles = sum(single.bytes for single in plan.between)
    click.echo(f"published {entry}: {decimal(entry.bytes)} instead of {decimal(singles)} in {len(plan.between)} steps")


async def _folded(weights: OpenWeights, start: int, end: int, epoch: int | None) -> tuple[FoldPlan, Entry]:
    signer, verifier = weights.needed_signer(), weights.needed_verifier()
    latest = await weights.latest()
    if latest.newest is None:
        raise FoldRefused(f"nothing has been published of {weights.policy} yet")
    of_epoch = latest.newest.epoch if epoch is None else epoch
    plan = plan_fold(latest, Position(of_epoch, start), Position(of_epoch, end))
    needed = sum(entry.bytes for entry in (*plan.before, *plan.between))
    with scratch_folder(needed) as scratch, phase_bars("fetching", "encoding") as (fetched, encoded):
        writer = FoldWriter(
            store=weights.store,
            policy=weights.policy,
            signer=signer,
            verifier=verifier,
            member=f"fold-{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
            scratch=scratch,
            clock=time.time,
        )
        return plan, await writer.fold(plan, deadline_s=_DEADLINE_S, fetched=fetched, encoded=encoded)
