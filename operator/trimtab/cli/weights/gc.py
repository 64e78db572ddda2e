"""`trimtab weights gc`: one run of the garbage collection that trainers do by themselves while they run."""

from __future__ import annotations

from pathlib import Path

import click
from rich.filesize import decimal

from trimtab.cli.state_folder import state_folder_option
from trimtab.cli.weights.access import OpenWeights, json_option, policy_option, store_time, with_weights
from trimtab.cli.weights.screen import duration, duration_text, output, plain, print_json
from trimtab.weights.store.collection import Collected, CollectionRules, collect, is_garbage, referenced_keys
from trimtab.weights.store.condemned import CondemnedList
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.kept import KeptVersions
from trimtab.weights.store.keys import parse_key, policy_prefix
from trimtab.weights.store.latest import Latest, LatestPointer
from trimtab.weights.store.leases import live_leases
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.retention import retained

_DEADLINE_S = 1800.0


@click.command()
@policy_option
@state_folder_option
@click.option(
    "--keep-versions", type=click.IntRange(min=1), default=200, show_default=True, help="Newest versions kept."
)
@click.option("--lease-ttl", type=duration, default="15m", show_default=True, help="When a member's lease ends.")
@click.option("--grace", type=duration, default="10m", show_default=True, help="From condemning to deleting.")
@click.option("--dry-run", is_flag=True, help="Write nothing; show what a run would do.")
@json_option
def gc(
    policy: str | None,
    state_folder: Path | None,
    keep_versions: int,
    lease_ttl: float,
    grace: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Drop versions that are no longer needed, and delete what nothing refers to.

    Kept are the newest versions, what members with a live lease need, the cheapest way in for joiners, and the versions
    that did best when they were evaluated. Objects are deleted in two runs at least --grace apart: the first condemns
    them, a later one that still finds them unused deletes them. A trainer that is running collects by itself; this is
    for stores that have none any more.
    """
    rules = CollectionRules(keep_versions=keep_versions, lease_ttl_s=lease_ttl, grace_s=grace)
    collected = with_weights(
        lambda weights: _collected(weights, rules, dry_run=dry_run), policy=policy, state_folder=state_folder
    )
    if as_json:
        print_json({"dry_run": dry_run, "collected": collected})
    else:
        _show(collected, rules, dry_run=dry_run)


async def _collected(weights: OpenWeights, rules: CollectionRules, *, dry_run: bool) -> Collected:
    manifests = ManifestReader(weights.store, weights.policy, weights.needed_verifier(), cached=0)
    latest = await weights.latest()
    if dry_run:
        return await _preview(weights, latest, rules, manifests, deadline_s=_DEADLINE_S)
    return await collect(
        weights.store,
        weights.policy,
        epoch=latest.epoch,
        rules=rules,
        pointer=LatestPointer(weights.store, weights.policy),
        manifests=manifests,
        in_flight=InFlight(),
        deadline_s=_DEADLINE_S,
    )


async def _preview(
    weights: OpenWeights, latest: Latest, rules: CollectionRules, manifests: ManifestReader, *, deadline_s: float
) -> Collected:
    """What `collect` would do, found without writing anything."""
    store, policy = weights.store, weights.policy
    now = await store_time(store, deadline_s=deadline_s)
    leases = [
        aged.lease for aged in await live_leases(store, policy, now=now, ttl_s=rules.lease_ttl_s, deadline_s=deadline_s)
    ]
    held = {lease.held for lease in leases if lease.held is not None}
    best = (await KeptVersions(store, policy).read(deadline_s=deadline_s)).positions
    kept = retained(latest, held, keep_versions=rules.keep_versions, kept=best)
    listed = [info async for info in store.scan(policy_prefix(policy), deadline_s=deadline_s)]
    names = {info.key: parse_key(policy, info.key) for info in listed}
    referenced = await referenced_keys(policy, kept, leases, names, manifests, deadline_s=deadline_s)
    garbage = [
        info
        for info in listed
        if info.key not in referenced and is_garbage(info, names[info.key], now=now, epoch=latest.epoch, rules=rules)
    ]
    since = await CondemnedList(store, policy).read(deadline_s=deadline_s)
    due = [info for info in garbage if info.key in since and since[info.key] <= now - rules.grace_s]
    gone = {info.key for info in due}
    return Collected(
        dropped=tuple(entry for entry in latest.catalogue if entry not in set(kept)),
        condemned=tuple(info.key for info in garbage if info.key not in gone),
        deleted=tuple(gone),
        freed_bytes=sum(info.size for info in due),
        unknown=tuple(key for key, name in names.items() if name is None),
    )


def _show(collected: Collected, rules: CollectionRules, *, dry_run: bool) -> None:
    console = output()
    if dry_run:
        console.print("[bold]dry run: nothing was written; a run now would have[/bold]")
    console.print(f"dropped    {len(collected.dropped)} entries of the catalogue")
    for entry in collected.dropped:
        console.print(f"           {entry}, {decimal(entry.bytes)}")
    console.print(f"condemned  {len(collected.condemned)} objects")
    _list(collected.condemned)
    console.print(f"deleted    {len(collected.deleted)} objects, {decimal(collected.freed_bytes)} freed")
    _list(collected.deleted)
    if collected.unknown:
        console.print(f"left alone {len(collected.unknown)} objects that nothing here writes")
        _list(collected.unknown)
    if collected.condemned or (dry_run and collected.dropped):
        console.print(
            f"deletion takes two runs: what is condemned, and still unused {duration_text(rules.grace_s)} later, goes "
            "with the first run after that"
        )


def _list(keys: tuple[str, ...]) -> None:
    console = output()
    for key in sorted(keys):
        console.print(f"           {plain(key)}", soft_wrap=True)
