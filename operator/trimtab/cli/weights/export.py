"""`trimtab weights export`: the newest adapters as other tools load them, by themselves or merged into their model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from trimtab.cli.state_folder import state_folder_option
from trimtab.cli.weights.access import REQUEST_DEADLINE_S, OpenWeights, policy_option, with_weights
from trimtab.cli.weights.pull import Pulled, pulled_into
from trimtab.weights.adapters import InvalidAdapter, said_in, write_peft_folder
from trimtab.weights.apply.copy_files import CopyInUse, DamagedCopy
from trimtab.weights.assembly import WrongWeights
from trimtab.weights.layout import StateLayout
from trimtab.weights.merging import merge_into
from trimtab.weights.puller import NO_LIMITS
from trimtab.weights.store.manifests import ManifestReader


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@policy_option
@state_folder_option
@click.option(
    "--merge-into",
    "model",
    metavar="MODEL",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the model that the job began with; DIR becomes a copy of it with the adapters merged.",
)
def export(folder: Path, policy: str | None, state_folder: Path | None, model: Path | None) -> None:
    """Write the newest adapters of a policy with `lora` to DIR.

    DIR becomes a folder that the PEFT library and engines load, or with --merge-into a checkpoint that needs no
    adapters. Weights of policies without `lora` are whole: `trimtab weights pull` fetches them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pulled-") as scratch:
        try:
            pulled = with_weights(
                lambda weights: _pulled_adapters(weights, Path(scratch)),
                policy=policy,
                state_folder=state_folder,
                failures=(WrongWeights, CopyInUse, DamagedCopy, InvalidAdapter),
            )
            file = Path(scratch) / "model.safetensors"
            adapter = write_peft_folder(file, folder) if model is None else merge_into(model, file, folder)
        except InvalidAdapter as error:
            raise click.ClickException(str(error)) from None
    what = f"adapters of rank {adapter.rank} for {', '.join(adapter.targets)}"
    click.echo(f"{folder} has {what}, {pulled.position}{'' if model is None else f', merged into {model}'}")


async def _pulled_adapters(weights: OpenWeights, scratch: Path) -> Pulled:
    """Looks before it fetches: whole weights may take hours."""
    reader = ManifestReader(weights.store, weights.policy, weights.needed_verifier())
    for entry in reversed((await weights.latest()).catalogue):
        if entry.base is None:
            header = (await reader.read(entry, deadline_s=REQUEST_DEADLINE_S)).header
            if header is not None and said_in(StateLayout.parse(header).metadata) is None:
                raise InvalidAdapter(
                    f"the weights of {weights.policy} are whole, not adapters; `trimtab weights pull` fetches them"
                )
            break
    return await pulled_into(weights, scratch, NO_LIMITS)
