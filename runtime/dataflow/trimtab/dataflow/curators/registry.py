"""From `data.curator` of the manifest to the curator, and to its state as snapshots of the ledger hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from trimtab.api.data import Curator as CuratorSettings
from trimtab.api.scalars import Plugin
from trimtab.dataflow.curators.contract import Curator, PassThrough
from trimtab.dataflow.curators.curriculum import Curriculum, difficulty_of
from trimtab.dataflow.curators.greso import Greso
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.pod import JobMisconfigured

_METHODS = ("admits", "observe", "stepped", "groups_needed", "state", "restore")
Result = TypeVar("Result")


def make_curator(
    settings: CuratorSettings,
    *,
    prompts: Iterable[tuple[str, Mapping[str, Any]]] | None,
    load: Callable[[Plugin], object],
) -> Curator:
    """The curator the manifest asks for. Raises JobMisconfigured when it cannot work.

    `prompts` are ids and contents of all prompts there are, read only by a curator that needs them; None for a
    generator without end. `load` makes the object that a plug-in names.
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
        return CheckedCurator(cast(Curator, curator), entrypoint=settings.custom.entrypoint)
    return PassThrough()


class CheckedCurator:
    """Stands between a user's curator and the ledger: whatever the curator raises is an error of the manifest, and the
    message says so. `entrypoint` is what messages call it.
    """

    def __init__(self, inner: Curator, *, entrypoint: str) -> None:
        self._inner = inner
        self._entrypoint = entrypoint

    def admits(self, prompt_id: str, content: Mapping[str, Any], *, draw: float) -> bool:
        return bool(self._asked("admits", lambda: self._inner.admits(prompt_id, content, draw=draw)))

    def observe(self, outcome: GroupOutcome) -> None:
        self._asked("observe", lambda: self._inner.observe(outcome))

    def stepped(self, policy: str, step: int) -> None:
        self._asked("stepped", lambda: self._inner.stepped(policy, step))

    def groups_needed(self, missing: int) -> int:
        needed = self._asked("groups_needed", lambda: self._inner.groups_needed(missing))
        if not isinstance(needed, int):
            raise JobMisconfigured(f"{self._entrypoint}.groups_needed answered {needed!r:.60}; return a whole number")
        return needed

    def state(self) -> dict[str, Any]:
        return self._asked("state", self._inner.state)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._asked("restore", lambda: self._inner.restore(state))

    def _asked(self, method: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except Exception as error:
            raise JobMisconfigured(
                f"data.curator.custom: {self._entrypoint}.{method} raised {type(error).__name__}: {error}"
            ) from error


class CuratorState:
    """What a curator has learnt, marked with the kind of the curator: the manifest may name another one by the time the
    snapshot is read, and that one begins with what happens next.
    """

    def __init__(self, curator: Curator, settings: CuratorSettings) -> None:
        self._curator = curator
        self._kind = "none"
        if settings.greso is not None:
            self._kind = "greso"
        elif settings.curriculum is not None:
            self._kind = "curriculum"
        elif settings.custom is not None:
            self._kind = settings.custom.entrypoint

    def state(self) -> dict[str, Any]:
        return {"curator": self._kind, "state": self._curator.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("curator") == self._kind:
            self._curator.restore(state["state"])
