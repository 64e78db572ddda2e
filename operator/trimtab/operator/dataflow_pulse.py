"""Which dataflow pods have fallen silent. A node that dies says nothing, and Kubernetes waits for minutes before it
believes that; a dataflow says every second that it is alive, and training stands while it is away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from trimtab.operator.plan.progress import Silences

_SILENCE_S = 4.0
"""Of one that beats every second. Nobody is replaced for less."""
_GAPS = 3.0
"""And so many times the longest of the last gaps: those of a busy machine are long, and so are those of versions that
beat less often."""
_REMEMBERED = 600
_LONGEST_S = 60.0
"""So much is silence in any case, and so it is where nothing was ever heard."""
_CALM_S = 600.0
"""Each replacement makes the next one wait twice as long, until so much time has passed."""
_LATE_S = 1.0
"""A look that comes so much later than it should says that we were slow, not they."""


@dataclass
class _Known:
    uid: str
    since: float
    """From when on its silence counts."""
    heard: bool = False
    heard_at: float | None = None
    """None also where somebody else is to blame for the gap since."""
    revision: int = 0


@dataclass
class DataflowPulse:
    """Judges by what is heard and when one looks; it neither listens nor waits itself. A pod is known by its uid too:
    its predecessor of the same name may have been heard, and it not yet."""

    clock: Callable[[], float]
    look_every_s: float
    _known: dict[str, _Known] = field(default_factory=dict)
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _silent: frozenset[str] = frozenset()
    _replaced: list[float] = field(default_factory=list)
    _looked_at: float | None = None

    def expect(self, pods: Iterable[tuple[str, str]]) -> None:
        """Names and uids of those that should be heard."""
        now, before, self._known = self.clock(), self._known, {}
        for name, uid in pods:
            known = before.get(name)
            if known is not None and known.uid == uid:
                self._known[name] = known
                continue
            if name in self._silent:
                self._replaced.append(now)
            self._known[name] = _Known(uid, now, revision=0 if known is None else known.revision)
        self._silent = frozenset(name for name in self._silent if self._known.get(name) is before.get(name))

    def hear(self, name: str, revision: int) -> None:
        """A heartbeat; whoever tells of the same one again tells nothing."""
        known = self._known.get(name)
        if known is None or revision <= known.revision:
            return
        now = self.clock()
        if known.heard_at is not None:
            self._gaps.append(now - known.heard_at)
        known.since = known.heard_at = now
        known.heard, known.revision = True, revision

    def excuse(self) -> None:
        """Nobody could be heard up to now."""
        now = self.clock()
        for known in self._known.values():
            known.since, known.heard_at = now, None

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Those that are nearly silent: the time to ask what they have said last, and whether anybody can be heard."""
        return tuple(name for name, one in self._known.items() if self._silence_s(one) > self._limit_s(one) / 2)

    def look(self) -> Silences:
        """Who is silent; to be called every `look_every_s`."""
        now = self.clock()
        late_s = 0.0 if self._looked_at is None else now - self._looked_at - self.look_every_s
        self._looked_at = now
        if late_s > _LATE_S:
            for known in self._known.values():
                known.since, known.heard_at = min(now, known.since + late_s), None
        silent = {name: one for name, one in self._known.items() if self._silence_s(one) >= self._limit_s(one)}
        self._silent = frozenset(silent)
        ended = frozenset(name for name, one in silent.items() if one.heard)
        return Silences(ended=ended, unheard=self._silent - ended)

    def _silence_s(self, known: _Known) -> float:
        return self.clock() - known.since

    def _limit_s(self, known: _Known) -> float:
        if not known.heard:
            return _LONGEST_S
        self._replaced = [at for at in self._replaced if at > self.clock() - _CALM_S]
        patience = max(_SILENCE_S, _GAPS * max(self._gaps, default=_SILENCE_S))
        return float(min(_LONGEST_S, patience * 2 ** len(self._replaced)))
