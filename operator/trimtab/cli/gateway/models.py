"""Where the weights come from that an agent is tried with: the manifest's model, or the newest that a job published."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from trimtab.api.policy import Policy
from trimtab.cli.weights.access import OpenWeights, with_weights
from trimtab.cli.weights.model_folder import copy_all_but_weights
from trimtab.cli.weights.pull import Pulled, pulled_into
from trimtab.fabric.readable import unreadable
from trimtab.rollout.policy.version_gate import BASE
from trimtab.weights.adapters import InvalidAdapter
from trimtab.weights.apply.copy_files import CopyInUse, DamagedCopy
from trimtab.weights.assembly import WrongWeights
from trimtab.weights.merging import merge_into
from trimtab.weights.puller import NO_LIMITS
from trimtab.weights.store.position import Position


@dataclass(frozen=True, kw_only=True)
class Model:
    folder: Path
    position: Position = BASE

    @property
    def told(self) -> str:
        return f"{self.folder}" if self.position == BASE else f"{self.position}"


def base_model(policy: Policy, *, folder: Path) -> Model:
    """As the manifest names it."""
    path = folder / policy.weights.uri
    if why := unreadable(path):
        raise click.ClickException(f"spec.policies[{policy.name}].model.uri: {why}")
    return Model(folder=path)


def newest_model(policy: Policy, base: Model, *, job: str, environment: Mapping[str, str], folder: Path) -> Model:
    """The base model with the newest weights of the job, in a folder of its own."""
    (folder / "pulled").mkdir(parents=True)
    pulled = with_weights(
        lambda weights: _pulled(weights, job, folder / "pulled"),
        policy=policy.name,
        failures=(WrongWeights, CopyInUse, DamagedCopy),
        environment=environment,
    )
    file, model = folder / "pulled" / "model.safetensors", folder / "model"
    if policy.lora is not None:
        try:
            merge_into(base.folder, file, model)
        except InvalidAdapter as error:
            raise click.ClickException(f"spec.policies[{policy.name}].model.uri: {error}") from None
    else:
        copy_all_but_weights(base.folder, model)
        file.rename(model / file.name)
    return Model(folder=model, position=pulled.position)


def is_place_of(job: str, *, prefix: str) -> bool:
    return re.fullmatch(rf"{re.escape(job)}(-[0-9a-f]{{8}})?", prefix.rpartition("/")[2]) is not None


async def _pulled(weights: OpenWeights, job: str, folder: Path) -> Pulled:
    prefix = weights.store.full_key("weights").rpartition("/")[0]
    if not is_place_of(job, prefix=prefix):
        raise click.ClickException(
            f"--job {job}: TRIMTAB_OBJECT_STORE__PREFIX is {prefix!r}, which is another job's; it ends with the name of"
            " the job, in a cluster followed by the beginning of its uid"
        )
    await weights.latest()
    return await pulled_into(weights, folder, NO_LIMITS)
