"""From `data.curator` of the manifest to the curator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from trimtab.api.data import Curator as CuratorSettings
from trimtab.api.scalars import Plugin
from trimtab.dataflow.curators.contract import Curator
from trimtab.dataflow.curators.curriculum import Curriculum, difficulty_of
from trimtab.dataflow.curators.custom import Checked
from trimtab.dataflow.curators.greso import Greso
from trimtab.dataflow.curators.passing import PassThrough
from trimtab.fabric.pod import JobMisconfigured

_METHODS = ("admits", "observe", "stepped", "groups_needed", "state", "restore")


def make_curator(
    settings: CuratorSettings,
    *,
    prompts: Iterable[tuple[str, Mapping[str, Any]]] | None,
    load: Callable[[Plugin], object],
) -> Curator:
    """The curator the manifest asks for. Raises JobMisconfigured when it cannot work.

    `prompts` are ids and contents of all prompts there are, read only by a curator that needs them; None when nobody
    can list them. `load` makes the object that a plug-in names.
    """
    if settings.greso is not None:
        return Greso(settings.greso)
    if settings.curriculum is not None:
        if prompts is None:
            raise JobMisconfigured(
                "data.curator.curriculum: it must know all prompts to put them in order, which a generator without end "
                "does not allow; give the generator a __len__, or leave the curriculum to the generator"
            )
        column = settings.curriculum.difficulty_column
        difficulties = (difficulty_of(prompt_id, content, column=column) for prompt_id, content in prompts)
        return Curriculum(settings.curriculum, difficulties)
    if settings.custom is not None:
        curator = load(settings.custom)
        for method in _METHODS:
            if not callable(getattr(curator, method, None)):
                raise JobMisconfigured(
                    f"data.curator.custom: {settings.custom.entrypoint} has no method {method!r}; "
                    "trimtab.dataflow.curators.contract says what each is for"
                )
        return Checked(cast(Curator, curator), entrypoint=settings.custom.entrypoint)
    return PassThrough()
