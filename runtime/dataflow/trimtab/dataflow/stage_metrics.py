"""How a job's stages are doing: what waits for each, and what came of the columns that arrived."""

from __future__ import annotations

from functools import partial

from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.staged_group import ColumnArrival
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.column import ColumnHeader

_OUTCOMES = {
    ColumnArrival.NEW: "taken",
    ColumnArrival.DONE: "taken",
    ColumnArrival.LEFT_OUT: "taken",
    ColumnArrival.FAILED: "failed",
    ColumnArrival.DUPLICATE: "duplicate",
    ColumnArrival.EARLY: "early",
    ColumnArrival.REFUSED: "refused",
}


class StageMetrics:
    """Series exist from zero on: a count that begins with one is no increase to Prometheus."""

    def __init__(self, metrics: Metrics) -> None:
        self._columns = metrics.counter(
            "stage_columns",
            "Columns that arrived, by what came of them: taken, failed, duplicate, early (before its rows) or refused",
            ("stage", "outcome"),
        )
        self._waiting = metrics.gauge(
            "stage_waiting_groups", "Groups that a stage has been asked about and has not answered", ("stage",)
        )
        self._staged = metrics.gauge("staged_groups", "Complete groups of training that wait for stages", ("policy",))

    def watch(self, ledger: Ledger) -> None:
        """What waits is read at each scrape."""
        books = ledger.stages
        for stage in books.graph.stages:
            self._waiting.labels(stage).set_function(partial(ledger.waiting_for, stage))
            for outcome in dict.fromkeys(_OUTCOMES.values()):
                self._columns.labels(stage, outcome)
        for policy in books.graph.policies:
            if books.graph.of(policy):
                self._staged.labels(policy).set_function(partial(books.count, policy))

    def note(self, header: ColumnHeader, arrival: ColumnArrival, *, known: bool) -> None:
        """`known` says whether the job has the stage: what a pod makes up is no series."""
        if known:
            self._columns.labels(header.stage, _OUTCOMES[arrival]).inc()
