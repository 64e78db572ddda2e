"""What one may ask for on one machine and not in a cluster: paths relative to a manifest's folder, which no pod has,
and specs of any length, which other people's objects would wait for.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from trimtab.api.job import RLJobSpec
from trimtab.api.policy import Model
from trimtab.api.pool import RolloutPoolSpec
from trimtab.api.prompts import PromptInput
from trimtab.api.source_uri import HubSource, place_below, source_of
from trimtab.api.trainer import TrainerSpec
from trimtab.operator import resume_source

MAX_SPEC_BYTES = 256 * 1024
"""A plan reads all of it several times, and all objects wait for it."""
NO_TRACKING_IMAGE = (
    "spec.tracking: this operator has no image for the pod that writes to trackers; set TRIMTAB_IMAGES__TRACKING"
    " (jobs.images.tracking of the chart)"
)


def relative_paths(spec: RLJobSpec) -> list[str]:
    """Fields with such a path, as Kubernetes writes them, each with the path."""
    found: list[str] = []
    for number, policy in enumerate(spec.policies):
        found += _model(f"spec.policies[{number}].model", policy.model)
    for number, source in enumerate(spec.data.prompts):
        found += _prompts(f"spec.data.prompts[{number}]", source)
    for number, benchmark in enumerate(spec.evaluation.benchmarks if spec.evaluation else ()):
        found += _prompts(f"spec.evaluation.benchmarks[{number}]", benchmark)
    for number, pool in enumerate(spec.pools):
        found += _relative(f"spec.pools[{number}].engine.interpreter", pool.engine.interpreter)
    if spec.workflow.source is not None:
        found += _relative("spec.workflow.source.path", spec.workflow.source.path)
    place = None if spec.resume_from is None else spec.resume_from.checkpoint
    if place is not None and source_of(place) is None:
        found += _relative("spec.resumeFrom.checkpoint", place)
    return found


def overlong_spec(spec: object) -> str | None:
    """Why a spec, as JSON has it, is too long to be read, with the fix."""
    if len(msgspec.json.encode(spec)) <= MAX_SPEC_BYTES:
        return None
    return (
        f"spec: has more than {MAX_SPEC_BYTES} bytes; put what is long into a ConfigMap, a volume or object storage, "
        "and name it here"
    )


def refusal_of(spec: RLJobSpec | RolloutPoolSpec | TrainerSpec) -> str | None:
    """Why it cannot run in a cluster, in a sentence with the fix; None when it can."""
    match spec:
        case RLJobSpec():
            found = relative_paths(spec)
        case RolloutPoolSpec():
            found = list(_relative("spec.engine.interpreter", spec.engine.interpreter))
        case TrainerSpec():
            found = list(_model("spec.model", spec.model))
    if isinstance(spec, RLJobSpec) and (why := next(_untold(spec), None)) is not None:
        return why
    if isinstance(spec, RLJobSpec) and (why := resume_source.refusal(spec)) is not None:
        return why
    if moving := list(_moving(spec)):
        return (
            f"{', '.join(moving)}: without a revision pods would fetch what is newest when each of them begins; add"
            " @ and a commit or a tag"
        )
    if not found:
        return None
    return (
        f"{', '.join(found)}: relative to a manifest's folder, which pods do not have; give an absolute path in the "
        "pods, such as one on a volume of the template"
    )


def _untold(spec: RLJobSpec) -> Iterator[str]:
    """Trackers that would be told nothing, or where nobody could look."""
    for number, tracker in enumerate(spec.tracking):
        field = f"spec.tracking[{number}]"
        if tracker.type == "tensorboard" and tracker.folder is None:
            yield f"{field}.folder: missing; give a folder on a volume of spec.trackingTemplate, which outlives the pod"
        elif tracker.type == "mlflow" and tracker.folder is None and tracker.url is None:
            yield f"{field}.url: missing; pods find a tracking server by it alone"
        elif tracker.folder is not None and not tracker.folder.startswith("/"):
            yield (
                f"{field}.folder ({tracker.folder}): relative to a manifest's folder, which pods do not have; give a"
                " folder on a volume of spec.trackingTemplate"
            )
        elif (tracker.folder is not None or tracker.type == "trackio") and spec.tracking_template is None:
            yield (
                f"spec.trackingTemplate: missing; what {tracker.type} writes would be gone with its pod: mount a volume"
                + (
                    ", and have TRACKIO_DIR lead there, or name a space in TRACKIO_SPACE_ID"
                    if tracker.folder is None
                    else ""
                )
            )


def _model(field: str, model: Model | None) -> Iterator[str]:
    if model is not None and place_below(model.uri) is None:
        yield from _relative(f"{field}.uri", model.uri)


def _moving(spec: RLJobSpec | RolloutPoolSpec | TrainerSpec) -> Iterator[str]:
    """Models on a hub without a revision."""
    models: list[tuple[str, Model | None]] = []
    if isinstance(spec, RLJobSpec):
        models = [(f"spec.policies[{number}].model", policy.model) for number, policy in enumerate(spec.policies)]
    elif isinstance(spec, TrainerSpec):
        models = [("spec.model", spec.model)]
    for field, model in models:
        for name, uri in (("uri", model.uri), ("tokenizer", model.tokenizer)) if model is not None else ():
            source = None if uri is None else source_of(uri)
            if isinstance(source, HubSource) and source.revision is None:
                yield f"{field}.{name} ({uri})"


def _prompts(field: str, source: PromptInput) -> Iterator[str]:
    for name, place in (
        ("jsonl", source.jsonl),
        ("parquet", source.parquet),
        ("huggingFace", source.hugging_face),
    ):
        if place is not None and place_below(place.uri) is None:
            yield from _relative(f"{field}.{name}.uri", place.uri)


def _relative(field: str, path: str | None) -> Iterator[str]:
    if path is not None and not path.startswith("/"):
        yield f"{field} ({path})"
