"""A group waits for its stages, in the order of the graph, and comes out as they have left it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dataflow.books import Feed, header, ledger
from tests.support.dataflow.stages import column, row_ids, stage
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import GroupsFiltered, StepGranted
from trimtab.dataflow.ledger.stage_graph import StageGraph
from trimtab.dataflow.ledger.staged_group import MAX_REFUSED, ColumnArrival, StagedGroup
from trimtab.fabric.wire.column import ColumnHeader
from trimtab.fabric.wire.stage import ColumnReference
from trimtab.fabric.wire.trajectory import TurnReward

GROUP = "t0.solver"
ROWS = ("t0.solver.0.0", "t0.solver.1.0")
REFERENCE = stage("reference")
GRADE = stage("grade", "Reward", needs=["reference"])
SIFT = stage("sift", "Filter", needs=["grade"])


class Stages(Feed):
    """Numbers columns as their stream would."""

    def __init__(self, books: Ledger) -> None:
        super().__init__(books)
        self.columns = 0

    def say(self, name: str, rows: tuple[str, ...] = ROWS, group_id: str = GROUP, **said: Any) -> ColumnArrival:
        return self.arrive_column(column(name, group_id, rows, **said))

    def arrive_column(self, one: ColumnHeader) -> ColumnArrival:
        self.columns += 1
        return self.ledger.column_arrived(self.columns, one)

    def staged(self, policy: str = "solver") -> StagedGroup:
        (only,) = self.ledger.stages.staged[policy].values()
        return only

    def due(self) -> list[str]:
        return [name for _, _, name in self.ledger.stages.due(100)]


def begun(*stages: Any, **books: Any) -> Stages:
    feed = Stages(ledger(stages=stages, **books))
    feed.issue(2)
    assert feed.complete(0) is (Arrival.STAGED if stages else Arrival.COMPLETED)
    return feed


def buffered(books: Ledger, policy: str = "solver") -> list[str]:
    return [group.group_id for group in books.trainers[policy].buffers[policy]]


def test_a_group_is_available_when_its_last_stage_is_done() -> None:
    feed = begun(REFERENCE, GRADE)
    assert (feed.due(), buffered(feed.ledger)) == (["reference"], [])
    assert feed.say("reference") is ColumnArrival.NEW
    assert (feed.due(), buffered(feed.ledger)) == (["grade"], [])
    assert feed.say("grade", rewards=[0.0, 0.5]) is ColumnArrival.DONE
    assert (feed.due(), buffered(feed.ledger)) == ([], [GROUP])
    (group,) = feed.ledger.trainers["solver"].buffers["solver"]
    assert [sample.reward for sample in group.samples] == [0.0, 0.5]
    assert group.columns == (ColumnReference(stage="reference", sequence=1),), "what a reward says is in its header"


def test_stages_that_do_not_need_one_another_are_asked_at_once() -> None:
    feed = begun(REFERENCE, stage("teacher"), stage("last", "Custom", needs=["reference", "teacher"]))
    assert feed.due() == ["reference", "teacher"]
    feed.say("teacher")
    assert feed.due() == []
    feed.say("reference")
    assert feed.due() == ["last"]
    assert feed.staged().references("last") == (
        ColumnReference(stage="reference", sequence=2),
        ColumnReference(stage="teacher", sequence=1),
    )


def test_rows_of_a_policy_that_no_stage_gets_wait_for_nothing() -> None:
    feed = Stages(ledger(policies={"solver": 1, "judge": 1}, stages=(stage("reference", rows=["solver"]),)))
    feed.issue(1)
    assert feed.complete(0, policy="judge") is Arrival.COMPLETED
    assert feed.complete(0) is Arrival.STAGED
    assert feed.say("reference", policy="judge", group_id="t0.judge") is ColumnArrival.REFUSED


def test_what_is_staged_is_under_way_and_leaves_no_room_for_more() -> None:
    feed = begun(REFERENCE)
    before = feed.ledger.capacity_tasks()
    assert feed.ledger.under_way("solver") == 2
    feed.complete(1)
    assert (feed.ledger.under_way("solver"), feed.ledger.capacity_tasks()) == (2, before)
    feed.say("reference")
    assert (feed.ledger.under_way("solver"), feed.ledger.capacity_tasks()) == (1, before)


def test_the_first_column_counts() -> None:
    feed = begun(GRADE, SIFT.model_copy(update={"needs": ()}))
    feed.say("grade", rewards=[0.25, 0.5])
    assert feed.say("grade", rewards=[9.0, 9.0], run="again") is ColumnArrival.DUPLICATE
    feed.say("sift", keep=[True, True])
    (group,) = feed.ledger.trainers["solver"].buffers["solver"]
    assert [sample.reward for sample in group.samples] == [0.25, 0.5]
    assert feed.say("grade", rewards=[9.0, 9.0], run="late") is ColumnArrival.DUPLICATE


@pytest.mark.parametrize(
    "said",
    [
        {"rows": ROWS[:1], "rewards": [1.0]},
        {"rows": ROWS[::-1], "rewards": [1.0, 1.0]},
        {"rewards": [1.0]},
        {"rewards": None},
        {"keep": [True, True]},
        {"rewards": [1.0, 1.0], "keep": [True, True]},
    ],
    ids=["other rows", "another order", "too few", "nothing", "something else", "more"],
)
def test_what_was_not_asked_for_is_refused_and_asked_again(said: dict[str, Any]) -> None:
    feed = begun(GRADE.model_copy(update={"needs": ()}))
    assert feed.due() == ["grade"]
    assert feed.say("grade", **said) is ColumnArrival.REFUSED
    assert feed.due() == ["grade"]
    assert feed.say("grade", rewards=[0.5, 1.0]) is ColumnArrival.DONE


def test_a_column_before_those_that_it_needs_is_refused() -> None:
    feed = begun(REFERENCE, GRADE)
    assert feed.due() == ["reference"]
    assert feed.say("grade", rewards=[1.0, 1.0]) is ColumnArrival.REFUSED
    assert feed.due() == [], "it was not asked yet"


def test_a_stage_that_only_says_what_was_not_asked_for_fails_the_group() -> None:
    feed = begun(GRADE.model_copy(update={"needs": ()}))
    for _ in range(MAX_REFUSED - 1):
        assert feed.say("grade") is ColumnArrival.REFUSED
    assert feed.say("grade") is ColumnArrival.FAILED
    assert feed.ledger.streams["solver"].failed_groups == 1
    assert feed.ledger.stages.answered.failed == {"grade": 1}


def test_a_stage_that_was_given_up_fails_the_group_and_frees_its_place() -> None:
    feed = begun(REFERENCE, GRADE, stage("teacher"))
    assert feed.due() == ["reference", "teacher"]
    before = feed.ledger.under_way("solver")
    assert feed.say("reference", error="engine.dead") is ColumnArrival.FAILED
    assert feed.due() == []
    assert feed.ledger.under_way("solver") == before - 1
    assert (feed.ledger.streams["solver"].failed_groups, buffered(feed.ledger)) == (1, [])
    assert feed.say("teacher") is ColumnArrival.DUPLICATE, "the group is over"


def test_a_filter_leaves_rows_out_for_the_stages_behind_it() -> None:
    feed = begun(SIFT.model_copy(update={"needs": ()}), stage("values", "Values", needs=["sift"]), REFERENCE)
    feed.say("reference")
    feed.say("sift", keep=[False, True])
    assert row_ids(feed.staged(), "values") == ROWS[1:]
    assert feed.say("values", rows=ROWS) is ColumnArrival.REFUSED
    assert feed.say("values", rows=ROWS[1:]) is ColumnArrival.DONE
    (group,) = feed.ledger.trainers["solver"].buffers["solver"]
    assert [sample.trajectory_id for sample in group.samples] == list(ROWS[1:])
    assert group.episodes == 1
    assert [reference.stage for reference in group.columns] == ["values", "reference"]


def test_a_group_without_a_row_left_is_filtered_out() -> None:
    feed = begun(SIFT.model_copy(update={"needs": ()}), REFERENCE)
    assert feed.due() == ["sift", "reference"]
    assert feed.say("sift", keep=[False, False]) is ColumnArrival.LEFT_OUT
    assert feed.due() == []
    assert (feed.ledger.streams["solver"].filtered_groups, feed.ledger.under_way("solver")) == (1, 1)


def test_of_two_rewards_the_later_in_the_manifest_is_trained_whichever_came_first() -> None:
    first, second = stage("first", "Reward"), stage("second", "Reward")
    for order in (("first", "second"), ("second", "first")):
        feed = begun(first, second)
        for name in order:
            feed.say(name, rewards=[1.0, 2.0] if name == "first" else [3.0, 4.0])
        (group,) = feed.ledger.trainers["solver"].buffers["solver"]
        assert [sample.reward for sample in group.samples] == [3.0, 4.0]


def test_a_stage_is_told_the_reward_of_those_that_it_needs() -> None:
    feed = begun(stage("first", "Reward"), stage("alone", "Reward"), stage("behind", "Custom", needs=["first"]))
    feed.say("first", rewards=[0.25, 0.75])
    feed.say("alone", rewards=[9.0, 9.0])
    assert [row.reward for row in feed.staged().rows_for("behind")] == [0.25, 0.75]
    assert [row.reward for row in feed.staged().rows_for("alone")] == [1.0, 1.0]


def test_turns_keep_their_tokens_and_get_their_rewards() -> None:
    feed = Stages(ledger(stages=(stage("turns", "TurnRewards"),)))
    feed.issue(1)
    told = (TurnReward(0, 1, 0.0), TurnReward(3, 2, 0.0))
    feed.arrive(header(0, 0, turn_rewards=told))
    feed.arrive(header(0, 1, turn_rewards=(TurnReward(0, 3, 0.0),)))
    assert feed.say("turns", turn_rewards=[[0.5], [1.0]]) is ColumnArrival.REFUSED
    assert feed.say("turns", turn_rewards=[[0.5, -1.0], [1.0]]) is ColumnArrival.DONE
    (group,) = feed.ledger.trainers["solver"].buffers["solver"]
    assert group.samples[0].turn_rewards == (TurnReward(0, 1, 0.5), TurnReward(3, 2, -1.0))


def test_a_column_that_is_here_before_its_group_is_looked_at_when_that_is_complete() -> None:
    feed = Stages(ledger(stages=(REFERENCE, GRADE)))
    feed.issue(1)
    assert feed.say("reference") is ColumnArrival.EARLY
    assert feed.say("reference", group_id="nonsense") is ColumnArrival.REFUSED
    feed.complete(0)
    assert feed.due() == ["grade"]
    assert feed.staged().said["reference"].sequence == 1


def test_filters_are_asked_with_what_stages_have_said() -> None:
    feed = begun(GRADE.model_copy(update={"needs": ()}), has_filters=True)
    assert not feed.ledger.streams["solver"].unfiltered
    feed.say("grade", rewards=[0.5, 1.0])
    group = feed.ledger.streams["solver"].unfiltered[GROUP]
    assert group.outcome().rewards == (0.5, 1.0)


def test_what_was_decided_without_stages_stands_in_a_manifest_with_some() -> None:
    """Records are the word of the manifest of their time."""
    feed = Stages(ledger(stages=(REFERENCE,), batch_size=2))
    feed.ledger.begin_replay()
    feed.complete(0)
    feed.complete(1)
    feed.issue(2)
    feed.ledger.apply(StepGranted(policy="solver", step=0, groups=(GROUP,), granted_at=1.0))
    feed.ledger.apply(GroupsFiltered(policy="solver", kept=("t1.solver",)))
    assert feed.ledger.trainers["solver"].next_step == 1
    assert feed.ledger.stages.count("solver") == 0


def test_a_group_whose_rows_share_an_id_fails() -> None:
    feed = Stages(ledger(stages=(REFERENCE,)))
    feed.issue(1)
    feed.ledger.arrived(1, "same", header(0, 0))
    assert feed.ledger.arrived(2, "same", header(0, 1)) is Arrival.FAILED
    assert feed.ledger.streams["solver"].failed_groups == 1


def test_places_of_prompts_are_known_for_as_long_as_a_stage_may_ask() -> None:
    feed = Stages(ledger(stages=(stage("grade", "Reward"),)))
    feed.issue(3)
    assert [feed.ledger.stages.place_of(f"t{task}.solver") for task in range(3)] == [0, 1, 2]
    for task in (0, 2):
        feed.complete(task)
        feed.say("grade", tuple(f"t{task}.solver.{index}.0" for index in (0, 1)), f"t{task}.solver", rewards=[1, 0])
    feed.issue(1)
    assert feed.ledger.stages.places == {1: 1, 2: 2, 3: 3}, "of the first task all is settled"
    without = Stages(ledger(stages=(REFERENCE,)))
    without.issue(3)
    assert without.ledger.stages.places == {}, "a model reads the rows alone"


def test_the_graph_says_what_is_behind_a_stage_at_any_distance() -> None:
    graph = StageGraph((REFERENCE, GRADE, SIFT), policies=("solver", "judge"))
    assert graph.behind("solver", "sift") == {"reference", "grade"}
    narrow = StageGraph((stage("reference", rows=["judge"]), GRADE), policies=("solver", "judge"))
    assert narrow.needs("solver", "grade") == (), "a stage that gets no rows of this policy is not waited for"
    assert narrow.needs("judge", "grade") == ("reference",)
