"""`trimtab push`: a version of a model as a folder that hubs of models take, with a card that says what it is."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from trimtab.cli.printable import printable
from trimtab.cli.state_folder import state_folder_option
from trimtab.cli.weights.access import policy_option
from trimtab.cli.weights.local_store import job_of
from trimtab.cli.weights.model_folder import copy_all_but_weights, is_adapters
from trimtab.cli.weights.pull import Pulled, Which, brought, first_model
from trimtab.cli.weights.wanted_version import Scored, scores_of
from trimtab.fabric.bus.topology import JobTopology
from trimtab.weights.puller import NO_LIMITS

_WEIGHTS = "model.safetensors"
_CARD = "README.md"
_RECORD = "trimtab.json"
_ATTRIBUTES = "*.safetensors filter=lfs diff=lfs merge=lfs -text\ntokenizer.json filter=lfs diff=lfs merge=lfs -text\n"
_OURS = frozenset({_WEIGHTS, _CARD, _RECORD, ".gitattributes"})


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@policy_option
@state_folder_option
@click.option("--version", metavar="N", type=click.IntRange(min=0), help="This version in place of the newest.")
@click.option("--best", is_flag=True, help="The version with the highest score of those that were evaluated.")
@click.option("--benchmark", metavar="NAME", help="By which --best goes; needed where there are several.")
@click.option("--job", metavar="NAME", help="Whose scores the card has. Known by itself with --state-folder.")
@click.option("--namespace", default="default", show_default=True, help="Of that RLJob.")
@click.option(
    "--model",
    metavar="MODEL",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the model that the job began with. Known by itself with --state-folder.",
)
def push(
    folder: Path,
    policy: str | None,
    state_folder: Path | None,
    version: int | None,
    best: bool,
    benchmark: str | None,
    job: str | None,
    namespace: str,
    model: Path | None,
) -> None:
    """Write a version of a job's model to DIR as a hub has it: weights, configuration, tokenizer, and a model card.

    DIR must be new or written by this command before. `hf upload ORG/NAME DIR` uploads it as it is.
    """
    _check(folder)
    wanted = Which(version=version, best=best, benchmark=benchmark, job=job, namespace=namespace)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".push-") as scratch:
        pulled = brought(Path(scratch) / "pulled", wanted, policy=policy, state_folder=state_folder, limits=NO_LIMITS)
        weights = Path(scratch) / "pulled" / _WEIGHTS
        if is_adapters(weights):
            raise click.ClickException(
                f"the weights of {pulled.policy} are adapters: `trimtab weights export DIR` writes them, or with"
                " --merge-into a whole model"
            )
        model = model or (first_model(state_folder, pulled.policy) if state_folder is not None else None)
        if model is None:
            raise click.UsageError("without a configuration and a tokenizer it is no model: give --model")
        made = Path(scratch) / "made"
        copy_all_but_weights(model, made)
        weights.rename(made / _WEIGHTS)
        job = job or (job_of(state_folder) if state_folder is not None else None)
        scores = () if job is None else _scores(job, namespace, pulled, state_folder=state_folder)
        record = record_of(pulled, job=job, scores=scores)
        (made / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        (made / _CARD).write_text(card(record), encoding="utf-8")
        (made / ".gitattributes").write_text(_ATTRIBUTES, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    click.echo(f"{folder} is {pulled.policy}, {pulled.position}; hf upload ORG/NAME {folder}")


def _check(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not all((folder / name).is_file() for name in _OURS):
        raise click.UsageError(f"{folder} is there and was not written by this command: name another, or remove it")


def _scores(job: str, namespace: str, pulled: Pulled, *, state_folder: Path | None) -> Sequence[Scored]:
    """Of this very version."""
    every = scores_of(JobTopology(namespace, job), state_folder=state_folder)
    own = [one for one in every if (one.policy, one.version) == (pulled.policy, pulled.position.version)]
    return sorted(own, key=lambda one: one.benchmark)


def record_of(pulled: Pulled, *, job: str | None, scores: Sequence[Scored]) -> dict[str, Any]:
    """For programs."""
    return {
        "job": job,
        "policy": pulled.policy,
        "epoch": pulled.position.epoch,
        "version": pulled.position.version,
        "scores": {one.benchmark: one.score for one in scores},
    }


def card(record: Mapping[str, Any]) -> str:
    """With the head that hubs read: what loads it, and how it did."""
    name = f"{record['job']}-{record['policy']}" if record["job"] else str(record["policy"])
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": benchmark, "type": benchmark},
            "metrics": [{"type": "mean_reward", "value": score}],
        }
        for benchmark, score in record["scores"].items()
    ]
    head: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["trimtab", "reinforcement-learning"],
    }
    if results:
        head["model-index"] = [{"name": name, "results": results}]
    rows = "".join(f"| {printable(benchmark)} | {score:.3f} |\n" for benchmark, score in record["scores"].items())
    table = f"\n| benchmark | mean reward, held out |\n|---|---|\n{rows}" if rows else ""
    return (
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n# {name}\n\n"
        f"Trained with Trimtab: version {record['version']} of epoch {record['epoch']}, which is the number of trainer"
        f" steps behind it.\n{table}"
    )
