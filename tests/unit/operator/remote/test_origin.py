"""Names and labels of what is made in other clusters, and what is collected there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from trimtab.api import labels, names
from trimtab.kube.resources import Key
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.reconcile.placement import ANNOTATION, Placement, placements_of, recorded_placement
from trimtab.operator.remote.origin import (
    HOME_NAMESPACE,
    HOME_POOL_UID,
    Origin,
    home_pool_of,
    is_anchor_of,
    is_leftover,
)

ORIGIN = Origin(installation="op", namespace="team", job="job", pool="job-far", uid="11-22")
PLACE = Placement(home="team", secret="far", key="kubeconfig", namespace="guests")


def _stored(body: dict[str, Any], uid: str = "a-1") -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "uid": uid}}


def test_two_homes_can_share_a_namespace() -> None:
    other = replace(ORIGIN, uid="33-44")
    assert ORIGIN.anchor_name != other.anchor_name
    assert ORIGIN.name("job-far-rollout-0") != other.name("job-far-rollout-0")
    assert ORIGIN.name("x") == replace(ORIGIN, installation="another").name("x")


def test_the_longest_names_are_names_of_pods() -> None:
    longest = names.rollout_pod_name("p" * names.MAX_CHILD_NAME, 99_999)
    assert len(ORIGIN.name(longest)) <= 253
    for value in ORIGIN.labels.values():
        assert len(value) <= names.MAX_LABEL


def test_a_pod_is_known_at_home_by_its_planned_name() -> None:
    there = ObservedPod(name=ORIGIN.name("job-far-rollout-3"), phase=Phase.RUNNING)
    assert ORIGIN.seen_from_home(there).name == "job-far-rollout-3"


def test_what_is_sent_belongs_to_the_anchor_and_to_no_operator_there() -> None:
    anchor = _stored(ORIGIN.anchor(PLACE))
    pod: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {
            "name": "job-far-rollout-0",
            "namespace": "team",
            "labels": {labels.JOB: "job", labels.REVISION: "r"},
            "ownerReferences": [{"kind": "RolloutPool", "uid": "11-22"}],
        },
        "spec": {"containers": []},
    }
    sent = ORIGIN.sent_abroad(pod, anchor=anchor)
    (owner,) = sent["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("ConfigMap", "a-1", True)
    assert sent["metadata"]["namespace"] == "guests"
    assert labels.JOB not in sent["metadata"]["labels"]
    assert sent["metadata"]["labels"][labels.REVISION] == "r"
    assert home_pool_of(sent, home_namespace="team") == Key("team", "job-far")
    assert pod["metadata"]["labels"] == {labels.JOB: "job", labels.REVISION: "r"}


def test_what_is_not_ours_has_no_home() -> None:
    assert home_pool_of({"metadata": {"name": "x"}}, home_namespace="team") is None
    unlabelled = {"metadata": {"name": "x", "labels": {labels.OWNER: "job-far"}}}
    assert home_pool_of(unlabelled, home_namespace="team") is None
    assert not is_anchor_of({"metadata": {"name": "x", "labels": {labels.ROLE: "anchor"}}}, "op")


@pytest.mark.parametrize(
    "said",
    [
        {HOME_NAMESPACE: "kube-system"},
        {labels.OWNER: "../secrets/admin"},
        {labels.OWNER: "x?watch=1"},
        {labels.OWNER: ""},
    ],
    ids=str,
)
def test_the_other_cluster_has_no_say_about_other_namespaces_and_paths(said: dict[str, str]) -> None:
    anchor = _stored(ORIGIN.anchor(PLACE))
    anchor["metadata"]["labels"] |= said
    assert home_pool_of(anchor, home_namespace="team") is None


def test_another_installations_anchor_is_not_ours_to_collect() -> None:
    anchor = _stored(ORIGIN.anchor(PLACE))
    assert is_anchor_of(anchor, "op")
    assert not is_anchor_of(anchor, "another")


def _home(uid: str = "11-22", placement: Placement | None = PLACE) -> dict[str, Any]:
    annotations = {} if placement is None else {ANNOTATION: placement.written()}
    return {"metadata": {"name": "job-far", "namespace": "team", "uid": uid, "annotations": annotations}, "spec": {}}


@pytest.mark.parametrize(
    ("pool", "leftover"),
    [
        (_home(), False),
        (None, True),
        (_home(uid="another of the name"), True),
        (_home(placement=None), True),
        (_home(placement=replace(PLACE, namespace="elsewhere")), True),
    ],
    ids=["its pool is there", "its pool is gone", "another has its name", "moved home", "moved elsewhere"],
)
def test_leftovers_are_anchors_that_no_pool_stands_for(pool: dict[str, Any] | None, leftover: bool) -> None:
    assert is_leftover(_stored(ORIGIN.anchor(PLACE)), pool) is leftover


def test_what_is_being_deleted_is_no_leftover() -> None:
    anchor = _stored(ORIGIN.anchor(PLACE))
    anchor["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not is_leftover(anchor, None)


def test_a_placement_is_read_back_and_nonsense_is_none() -> None:
    assert recorded_placement(_home()) == PLACE
    for nonsense in ("", "[]", "{}", json.dumps({"home": 1, "other": 2}), "null"):
        item = _home()
        item["metadata"]["annotations"][ANNOTATION] = nonsense
        assert recorded_placement(item) is None
    assert ORIGIN.labels[HOME_POOL_UID] == "11-22"


def test_a_pool_may_be_between_two_places() -> None:
    item = _home()
    item["spec"] = {"cluster": {"kubeconfigSecret": {"name": "new", "key": "k"}}}
    assert placements_of(item) == {PLACE, Placement(home="team", secret="new", key="k", namespace="team")}
