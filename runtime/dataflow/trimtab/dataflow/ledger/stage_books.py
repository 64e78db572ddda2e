"""Groups that wait for their stages, and what stages are to be asked. All of it follows from the headers of
trajectories and columns, so that nothing of it is recorded: whoever reads them again comes to the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from trimtab.dataflow.ledger.groups import Group
from trimtab.dataflow.ledger.stage_graph import StageGraph
from trimtab.dataflow.ledger.staged_group import ColumnArrival, StagedGroup
from trimtab.dataflow.ledger.task_ids import parse_group_id, task_number
from trimtab.fabric.wire.column import ColumnHeader

MAX_ROWS = 1 << 14
"""Of a group that stages are asked about: what is said of each must fit a message."""
_MAX_EARLY = 256

Key = tuple[str, str]
"""Policy and group."""
Due = tuple[str, str, str]
"""Policy, group and stage."""


@dataclass(frozen=True)
class Answered:
    """By stage."""

    done: Counter[str] = field(default_factory=Counter)
    """Groups that it has computed something of."""
    failed: Counter[str] = field(default_factory=Counter)
    """Groups that were given up because of it."""


class StageBooks:
    """Of one kind of groups, those that are trained on or those that are evaluated. Changed by the ledger alone."""

    def __init__(
        self,
        graph: StageGraph,
        *,
        answered: Answered | None = None,
        is_group: Callable[[str], bool] = lambda group_id: parse_group_id(group_id) is not None,
    ) -> None:
        """`is_group` says whether an id may be of one of them."""
        self.graph = graph
        self.answered = answered or Answered()
        self._is_group = is_group
        self.staged: dict[str, dict[str, StagedGroup]] = {policy: {} for policy in graph.policies}
        """By policy and group, in the order in which they became complete."""
        self.places: dict[int, int] = {}
        """By task, the place of its prompt, for those that a stage may still be asked about."""
        self.last_sequence = 0
        """Of the columns that have arrived."""
        self._due: dict[Due, None] = {}
        self._early: dict[int, ColumnHeader] = {}

    def takes(self, group: Group) -> bool:
        """Whether there are stages for its rows."""
        return bool(self.graph.of(group.policy))

    def can_ask(self, group: Group) -> bool:
        """Whether a stage can be told of the group. Rows are known by their ids, which a pod makes up."""
        ids = {sample.trajectory_id for sample in group.samples}
        return len(ids) == len(group.samples) <= MAX_ROWS

    def begin(self, group: Group) -> list[tuple[int, ColumnHeader]]:
        """A group has become complete; returns columns about it that were here before, to be looked at now.

        That happens when two dataflow processes overlap: one that is about to end has asked a stage about rows which
        the other has not seen yet.
        """
        key = group.policy, group.group_id
        self.staged[group.policy][group.group_id] = staged = StagedGroup(group, self.graph)
        self._ask(key, staged.ready())
        early = [one for one in self._early.items() if (one[1].policy, one[1].group_id) == key] if self._early else []
        for sequence, _ in early:
            del self._early[sequence]
        return early

    def arrived(self, sequence: int, header: ColumnHeader, *, ended: bool) -> ColumnArrival:
        """`ended` says whether the group has been complete. With DONE, FAILED and LEFT_OUT it waits no longer, and is
        the caller's to `take`.
        """
        self.last_sequence = max(self.last_sequence, sequence)
        key = header.policy, header.group_id
        if not self.graph.applies(header.stage, header.policy):
            return ColumnArrival.REFUSED
        staged = self.staged[header.policy].get(header.group_id)
        if staged is None:
            return ColumnArrival.DUPLICATE if ended else self._hold(sequence, header)
        before = staged.ready()
        arrival = staged.add(sequence, header)
        match arrival:
            case ColumnArrival.DUPLICATE:
                return arrival
            case ColumnArrival.REFUSED:
                if header.stage in before:
                    self._ask(key, (header.stage,))
                return arrival
            case ColumnArrival.FAILED:
                self.answered.failed[header.stage] += 1
            case _:
                self.answered.done[header.stage] += 1
        self._due.pop((*key, header.stage), None)
        self._ask(key, (stage for stage in staged.ready() if stage not in before))
        return arrival

    def _hold(self, sequence: int, header: ColumnHeader) -> ColumnArrival:
        if not self._is_group(header.group_id):
            return ColumnArrival.REFUSED
        self._early[sequence] = header
        if len(self._early) > _MAX_EARLY:
            del self._early[next(iter(self._early))]
        return ColumnArrival.EARLY

    def take(self, policy: str, group_id: str) -> Group | None:
        """The group with what stages have said of it until now, which waits for no stage from here on."""
        staged = self.staged.get(policy, {}).pop(group_id, None)
        if staged is None:
            return None
        for stage in self.graph.of(policy):
            self._due.pop((policy, group_id, stage.name), None)
        return staged.finished()

    def give_up(self, *, issued: int) -> None:
        """Groups of tasks before this one wait for no stage any more."""
        for policy, own in self.staged.items():
            for group_id in [name for name in own if task_number(name) < issued]:
                self.take(policy, group_id)

    def due(self, count: int) -> list[Due]:
        """What is to be asked next. Nothing is due twice unless the answer was refused, or this process is new."""
        found = [due for due, _ in zip(self._due, range(count), strict=False)]
        for due in found:
            del self._due[due]
        return found

    def asked(self, stage: str) -> list[Due]:
        """What was due and has no answer."""
        return [
            due
            for policy, own in self.staged.items()
            for group_id, staged in own.items()
            if stage in staged.ready() and (due := (policy, group_id, stage)) not in self._due
        ]

    @property
    def is_due(self) -> bool:
        return bool(self._due)

    def waiting(self, stage: str) -> int:
        """Groups that a stage has been asked about, or is about to be."""
        return sum(1 for own in self.staged.values() for staged in own.values() if stage in staged.ready())

    def count(self, policy: str) -> int:
        """Groups of a policy that wait for stages."""
        return len(self.staged.get(policy, ()))

    def note_places(self, tasks: Iterable[int], places: Iterable[int], *, settled: int) -> None:
        """Where the prompts of new tasks stand. Of tasks below `settled` all groups have been complete."""
        if not self.graph.asks_with_prompts:
            return
        self.places.update(zip(tasks, places, strict=True))
        staged = (parse_group_id(group_id) for own in self.staged.values() for group_id in own)
        floor = min((settled, *(place[0] for place in staged if place is not None)))
        self.places = {task: place for task, place in self.places.items() if task >= floor}

    def place_of(self, group_id: str) -> int | None:
        """Of its prompt; None where no stage asks with it."""
        task = parse_group_id(group_id)
        return None if task is None else self.places.get(task[0])

    def _ask(self, key: Key, stages: Iterable[str]) -> None:
        for stage in stages:
            self._due[(*key, stage)] = None
