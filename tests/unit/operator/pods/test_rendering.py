"""Planned pods as Kubernetes has them, and templates laid over them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dataflow.jobs import job
from tests.support.operator.objects import rollout_pod
from trimtab.operator.plan.children import pool_of, trainer_of
from trimtab.operator.plan.job_pods import trainer_pods
from trimtab.operator.plan.pods import PodPlan
from trimtab.operator.pods.rendering import PodSite, preferring_others, render_pod
from trimtab.operator.pods.template import merged


def _site(kind: str, name: str, **fields: Any) -> PodSite:
    settings: dict[str, Any] = {
        "job": "job",
        "image": "trimtab:1",
        "environment": {"TRIMTAB_NATS__SERVERS": "nats://n:4222"},
        "secret": "job-credentials",
        "secret_files": {"nats-credentials": "nats-credentials-here"},
        "manifest": f"{name}-manifest",
    }
    owner = {"kind": kind, "metadata": {"name": name, "namespace": "here", "uid": f"uid-of-{name}"}}
    return PodSite(owner=owner, **(settings | fields))


def _worker(template: dict[str, Any] | None = None, **site: Any) -> dict[str, Any]:
    desired = job(pools=[{"name": "local", "template": template or {}, "gracePeriodSeconds": 7}])
    plan = rollout_pod(desired, pool_of(desired, desired.spec.pools[0], None), 0)
    return render_pod(plan, _site("RolloutPool", "job-local", **site))


def _rank(*, ranks: int = 1, attempt: int = 1, template: dict[str, Any] | None = None, **site: Any) -> dict[str, Any]:
    desired = job(trainer={"replicas": ranks, "template": template or {}})
    plan: PodPlan = trainer_pods(desired, trainer_of(desired, desired.spec.policies[0]), attempt=attempt)[-1]
    return render_pod(plan, _site("Trainer", "job-solver", ranks=ranks, **site))


def _env(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def test_variables_are_defined_before_they_are_used() -> None:
    for pod in (_worker(), _rank(ranks=2)):
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            known: set[str] = set()
            for entry in container["env"]:
                used = {part.split(")")[0] for part in entry.get("value", "").split("$(")[1:]}
                assert used <= known
                known.add(entry["name"])
            text = " ".join(container["command"])
            assert {part.split(")")[0] for part in text.split("$(")[1:]} <= known


def test_an_engine_is_a_sidecar_without_credentials() -> None:
    pod = _worker()
    (engine,) = pod["spec"]["initContainers"]
    assert (engine["name"], engine["restartPolicy"]) == ("engine-solver", "Always")
    assert "TRIMTAB_NATS__SERVERS" not in _env(engine)
    assert "secrets" not in {mount["name"] for mount in engine["volumeMounts"]}
    (port,) = engine["ports"]
    assert _env(engine)["ENGINE_PORT_SOLVER"] == "$(TRIMTAB_PORT_ENGINE_0)"
    assert _env(engine)["TRIMTAB_PORT_ENGINE_0"] == str(port["containerPort"])


SOURCES: dict[str, Any] = {
    "policies": [{"name": "solver", "model": {"uri": "hf://team/small@v1"}}],
    "hub": {"tokenSecret": {"name": "hub", "key": "token"}},
}


def _fetching(template: dict[str, Any] | None = None) -> dict[str, Any]:
    desired = job(pools=[{"name": "local", "template": template or {}}], **SOURCES)
    plan = rollout_pod(desired, pool_of(desired, desired.spec.pools[0], None), 0)
    return render_pod(plan, _site("RolloutPool", "job-local"))


def test_a_model_on_a_hub_is_fetched_before_the_engine_begins_and_only_there_with_the_token() -> None:
    pod = _fetching()
    fetch, engine = pod["spec"]["initContainers"]
    (worker,) = pod["spec"]["containers"]
    assert (fetch["name"], fetch["command"]) == ("fetch", ["python", "-m", "trimtab.fabric.sources"])
    assert "restartPolicy" not in fetch
    assert "startupProbe" not in fetch
    token = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert [entry["valueFrom"] for entry in fetch["env"] if entry["name"] == "HF_TOKEN"] == [token]
    assert "HF_TOKEN" not in {entry["name"] for entry in (*engine["env"], *worker["env"])}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["sources"] == {"name": "sources", "emptyDir": {}}
    writable = {
        entry["name"]: not mount.get("readOnly", False)
        for entry in (fetch, engine, worker)
        for mount in entry["volumeMounts"]
        if mount["name"] == "sources"
    }
    assert writable == {"fetch": True, "engine-solver": False, "worker": False}
    (model,) = [word for word in engine["command"] if word.startswith("--model-path=")]
    assert model.startswith("--model-path=$(FETCHED)/small-")
    assert _env(worker)["TRIMTAB_FETCHED"] == "$(FETCHED)"


def test_the_pods_of_a_node_share_a_volume_of_the_template() -> None:
    shared = {"name": "sources", "persistentVolumeClaim": {"claimName": "models"}}
    pod = _fetching({"spec": {"volumes": [shared]}})
    assert [volume for volume in pod["spec"]["volumes"] if volume["name"] == "sources"] == [shared]


def test_pods_that_need_nothing_fetch_nothing() -> None:
    for pod in (_worker(), _rank()):
        assert "fetch" not in {entry["name"] for entry in pod["spec"]["initContainers"]}
        assert "sources" not in {volume["name"] for volume in pod["spec"]["volumes"]}


def test_pods_are_shown_of_the_secret_what_is_theirs() -> None:
    for pod in (_worker(), _rank()):
        (secret,) = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
        assert secret["items"] == [{"key": "nats-credentials-here", "path": "nats-credentials"}]


def test_a_template_is_laid_over_and_what_makes_the_pod_ours_stays() -> None:
    pod = _worker(
        {
            "metadata": {"labels": {"team": "blue", "rl.trimtab.dev/job": "another"}, "annotations": {"a": "b"}},
            "spec": {
                "nodeSelector": {"gpu": "h200"},
                "restartPolicy": "OnFailure",
                "containers": [
                    {
                        "name": "worker",
                        "image": "mine:2",
                        "command": ["sh"],
                        "env": [{"name": "X", "value": "1"}, {"name": "TRIMTAB_POD__JOB", "value": "another"}],
                        "resources": {"limits": {"cpu": 2}},
                    },
                    {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": 1}}},
                    {"name": "beside", "image": "other:1"},
                ],
                "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
            },
        }
    )
    labels = pod["metadata"]["labels"]
    assert (labels["team"], labels["rl.trimtab.dev/job"]) == ("blue", "job")
    spec = pod["spec"]
    assert (spec["nodeSelector"], spec["restartPolicy"]) == ({"gpu": "h200"}, "Always")
    worker, beside = spec["containers"]
    assert (worker["image"], worker["command"][:2], beside["image"]) == ("mine:2", ["python", "-m"], "other:1")
    assert (_env(worker)["X"], _env(worker)["TRIMTAB_POD__JOB"]) == ("1", "job")
    assert spec["initContainers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert {volume["name"] for volume in spec["volumes"]} >= {"models", "job", "secrets", "scratch"}


def test_a_container_without_an_image_prepares_the_pod_in_ours_before_an_engine_starts() -> None:
    own = {"name": "scan", "image": "scanner:2", "securityContext": {"privileged": True}}
    pod = _worker({"spec": {"initContainers": [{"name": "make", "command": ["python"]}, own]}})
    make, scan, engine = pod["spec"]["initContainers"]
    assert (make["name"], make["image"], make["command"]) == ("make", "trimtab:1", ["python"])
    assert make["securityContext"] == engine["securityContext"]
    assert scan == own
    assert engine["name"] == "engine-solver"


def test_a_template_speaks_of_all_engines_or_of_those_of_one_policy() -> None:
    template = {
        "spec": {
            "containers": [
                {"name": "engine", "env": [{"name": "ALL", "value": "1"}]},
                {"name": "engine-solver", "env": [{"name": "SOLVERS", "value": "1"}]},
            ]
        }
    }
    engines = [{"policy": "solver", "replicas": 2}, {"policy": "judge"}]
    desired = job(policies=2, pools=[{"name": "local", "template": template, "engines": engines}])
    pod = render_pod(
        rollout_pod(desired, pool_of(desired, desired.spec.pools[0], None), 0), _site("RolloutPool", "job-local")
    )
    shown = {engine["name"]: _env(engine) for engine in pod["spec"]["initContainers"]}
    assert list(shown) == ["engine-solver", "engine-2-solver", "engine-judge"]
    assert all("ALL" in env for env in shown.values())
    assert [name for name, env in shown.items() if "SOLVERS" in env] == ["engine-solver", "engine-2-solver"]
    ports = [engine["ports"][0]["containerPort"] for engine in pod["spec"]["initContainers"]]
    assert len(set(ports)) == 3


def test_a_successor_prefers_other_nodes_beside_what_its_template_prefers() -> None:
    own = {"weight": 5, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": [own],
        },
        "podAffinity": {},
    }
    pod = _worker({"spec": {"affinity": affinity}})
    found = preferring_others(pod, node="n1")["spec"]["affinity"]
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]
    assert found["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == [
        own,
        {"weight": 100, "preference": {"matchFields": fields}},
    ]
    assert found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == required
    assert pod["spec"]["affinity"] == affinity, "the pod that it was made from is as it was"
    assert preferring_others(_worker(), node="n1")["spec"]["affinity"]["nodeAffinity"]


def test_one_rank_meets_itself_on_loopback_and_several_by_the_name_of_the_first() -> None:
    alone = _rank()
    assert _env(alone["spec"]["containers"][0])["TRIMTAB_HOST_SHARED"] == "127.0.0.1"
    assert "subdomain" not in alone["spec"]
    several = _rank(ranks=2)
    assert _env(several["spec"]["containers"][0])["TRIMTAB_HOST_SHARED"] == "job-solver-trainer-0.job-solver"
    assert (several["spec"]["hostname"], several["spec"]["subdomain"]) == ("job-solver-trainer-1", "job-solver")


def test_ranks_share_the_meeting_point_and_no_other_port() -> None:
    names = {port["name"] for port in _rank(ranks=2)["spec"]["containers"][0]["ports"]}
    assert names == {"rendezvous", "probes-1"}
    probe = _rank(ranks=2)["spec"]["containers"][0]["readinessProbe"]
    assert probe["httpGet"]["port"] == "probes-1"


def test_each_attempt_has_a_meeting_point_of_its_own() -> None:
    def port(pod: dict[str, Any]) -> str:
        return _env(pod["spec"]["containers"][0])["TRIMTAB_PORT_RENDEZVOUS"]

    assert port(_rank(ranks=2, attempt=1)) == port(_rank(ranks=2, attempt=1))
    assert port(_rank(ranks=2, attempt=1)) != port(_rank(ranks=2, attempt=2))


def test_a_trainer_of_ones_own_is_not_asked_for_our_probes() -> None:
    own = {"spec": {"containers": [{"name": "trainer", "command": ["my-trainer"], "args": ["--fast"]}]}}
    container = _rank(template=own, own_command=True)["spec"]["containers"][0]
    assert container["command"] == ["my-trainer", "--fast"]
    assert "args" not in container
    assert "livenessProbe" not in container
    assert "livenessProbe" in _rank()["spec"]["containers"][0]


def test_code_in_a_config_map_lies_beside_the_manifest() -> None:
    volume = _worker(code="my-code")["spec"]["volumes"][0]
    assert [source["configMap"]["name"] for source in volume["projected"]["sources"]] == [
        "my-code",
        "job-local-manifest",
    ]


@pytest.mark.parametrize(
    ("below", "above", "result"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"args": ["x"]}, {"args": ["y", "z"]}, {"args": ["y", "z"]}),
        (
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}]},
            {"env": [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]},
        ),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
    ],
)
def test_merging(below: dict[str, Any], above: dict[str, Any], result: dict[str, Any]) -> None:
    assert merged(below, above) == result


def test_images_are_pulled_with_the_operator_s_secrets_unless_the_template_names_its_own() -> None:
    assert "imagePullSecrets" not in _worker()["spec"]
    for pod in (_worker(pull_secrets=("registry",)), _rank(pull_secrets=("registry",))):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    own = _worker({"spec": {"imagePullSecrets": [{"name": "mine"}]}}, pull_secrets=("registry",))
    assert own["spec"]["imagePullSecrets"] == [{"name": "mine"}]


SMALL = {"cpu": "100m", "memory": "256Mi"}


def test_containers_request_something_unless_told() -> None:
    assert "resources" not in _rank()["spec"]["containers"][0]
    pod = _worker(requests=SMALL, engine_requests={"memory": "1Gi"})
    assert pod["spec"]["containers"][0]["resources"] == {"requests": SMALL}
    assert pod["spec"]["initContainers"][0]["resources"] == {"requests": {"memory": "1Gi"}}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"limits": {"memory": "64Mi"}}, {"limits": {"memory": "64Mi"}, "requests": {"cpu": "100m"}}),
        ({"requests": {"cpu": "4"}}, {"requests": {"cpu": "4", "memory": "256Mi"}}),
        ({"limits": SMALL}, {"limits": SMALL}),
    ],
)
def test_what_the_template_says_of_a_resource_holds(told: dict[str, Any], expected: dict[str, Any]) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "resources": told}]}}
    assert _rank(template=template, requests=SMALL)["spec"]["containers"][0]["resources"] == expected


def test_ranks_of_a_gang_wait_behind_a_gate_beside_those_of_others() -> None:
    assert _rank()["spec"]["schedulingGates"] == [{"name": "rl.trimtab.dev/gang"}]
    assert _rank(ranks=2)["spec"]["schedulingGates"] == [{"name": "rl.trimtab.dev/gang"}]
    queued = _rank(ranks=2, template={"spec": {"schedulingGates": [{"name": "queue"}]}})
    assert queued["spec"]["schedulingGates"] == [{"name": "queue"}, {"name": "rl.trimtab.dev/gang"}]
