"""The names of a job's stages, which its streams, consumers and the rights of its pods depend on."""

from __future__ import annotations

from trimtab.kube.resources import Object


def stage_names(job: Object) -> tuple[str, ...]:
    """Of an RLJob as the API server has it."""
    return tuple(str(stage["name"]) for stage in (job.get("spec") or {}).get("stages") or ())
