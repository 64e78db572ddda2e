"""The pods of a job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api.manifests import changed, staged_job
from tests.support.dataflow.jobs import job
from tests.support.operator.objects import rollout_pod
from trimtab.api.algorithm import Algorithm
from trimtab.api.job import RLJob
from trimtab.api.lora import Lora
from trimtab.api.policy import Model
from trimtab.api.pool import JobPool
from trimtab.api.scalars import SecretKey
from trimtab.api.training import TrainerSettings
from trimtab.api.validation import parse
from trimtab.operator.plan.children import pool_of, trainer_of
from trimtab.operator.plan.job_pods import dataflow_pods, trainer_pods
from trimtab.operator.plan.pods import PodPlan, Restart


def pool_pods(desired: RLJob, pool: JobPool, *, replicas: int) -> list[PodPlan]:
    made = pool_of(desired, pool, None)
    return [rollout_pod(desired, made, ordinal) for ordinal in range(replicas)]


def test_dataflow_is_one_pod_that_always_comes_back() -> None:
    (pod,) = dataflow_pods(job("sums"))
    assert (pod.name, pod.restart, pod.owner) == ("sums-dataflow-0", Restart.ALWAYS, "sums")
    (container,) = pod.containers
    assert container.environment == {
        "TRIMTAB_POD__NAMESPACE": "default",
        "TRIMTAB_POD__JOB": "sums",
        "TRIMTAB_POD__ROLE": "dataflow",
        "TRIMTAB_POD__NAME": "sums-dataflow-0",
        "TRIMTAB_JOB_FILE": "$(JOB_FILE)",
        "TRIMTAB_SCRATCH": "$(SCRATCH)/prompts",
    }


def test_the_dataflow_is_replaced_when_what_it_reads_has_changed() -> None:
    desired = job("sums")

    def revision(**changes: Any) -> str:
        changed = desired.model_copy(update={"spec": desired.spec.model_copy(update=changes)})
        return dataflow_pods(changed)[0].revision

    assert revision() == revision(suspend=True)
    assert revision() != revision(max_steps=12345)
    assert revision() != revision(target_reward=0.5)


def test_a_model_with_an_absolute_path_is_not_looked_for_beside_the_manifest() -> None:
    desired = job("sums")
    (policy,) = desired.spec.policies
    for uri, place in (("/models/tiny", "/models/tiny"), ("tiny", "$(JOB_FOLDER)/tiny")):
        model = policy.weights.model_copy(update={"uri": uri})
        policies = (policy.model_copy(update={"model": model}),)
        changed = desired.model_copy(update={"spec": desired.spec.model_copy(update={"policies": policies})})
        (pod,) = pool_pods(changed, changed.spec.pools[0], replicas=1)
        assert f"--model-path={place}" in pod.containers[0].command


@pytest.mark.parametrize("engine", ["builtin", "sglang"])
def test_an_engine_has_the_tokenizer_that_the_manifest_names(engine: str) -> None:
    desired = job("sums", pools=[{"name": "home", "engine": {"name": engine}}])
    (policy,) = desired.spec.policies
    model = policy.weights.model_copy(update={"tokenizer": "words"})
    policies = (policy.model_copy(update={"model": model}),)
    changed = desired.model_copy(update={"spec": desired.spec.model_copy(update={"policies": policies})})
    (pod,) = pool_pods(changed, changed.spec.pools[0], replicas=1)
    assert "--tokenizer-path=$(JOB_FOLDER)/words" in pod.containers[0].command


@pytest.mark.parametrize("engine", ["builtin", "sglang"])
def test_an_engine_is_started_for_the_adapters_of_its_policy(engine: str) -> None:
    desired = job("sums", pools=[{"name": "home", "engine": {"name": engine, "args": ["--mine"]}}])
    (policy,) = desired.spec.policies
    policies = (policy.model_copy(update={"lora": Lora(rank=8, targets=("q_proj", "o_proj"))}),)
    changed = desired.model_copy(update={"spec": desired.spec.model_copy(update={"policies": policies})})
    (pod,) = pool_pods(changed, changed.spec.pools[0], replicas=1)
    command = pod.containers[0].command
    assert {"--lora-rank=8", "--lora-targets=q_proj,o_proj"} <= set(command)
    # SGLang is told the scale by each adapter.
    assert ("--lora-alpha=16" in command) == (engine == "builtin")
    if engine == "sglang":
        assert command.index("--lora-rank=8") < command.index("--"), "they are the launcher's"


def test_ranks_are_a_group_that_knows_its_attempt() -> None:
    desired = job("sums", trainer={"replicas": 2, "gracePeriodSeconds": 7})
    pods = trainer_pods(desired, trainer_of(desired, desired.spec.policies[0]), attempt=3)
    assert [pod.name for pod in pods] == ["sums-solver-trainer-0", "sums-solver-trainer-1"]
    assert {(pod.owner, pod.gang, pod.attempt, pod.restart, pod.grace_s) for pod in pods} == {
        ("sums-solver", True, 3, Restart.NEVER, 7)
    }
    for number, pod in enumerate(pods):
        (container,) = pod.containers
        assert f"--node-rank={number}" in container.command
        assert "--nnodes=2" in container.command
        assert "--nproc-per-node=1" in container.command
        assert container.environment["TRIMTAB_ATTEMPT"] == "3"
        assert container.environment["TRIMTAB_POD__POLICY"] == "solver"


def test_a_pod_starts_a_rank_for_each_of_its_devices() -> None:
    desired = job("sums", trainer={"replicas": 2, "devicesPerReplica": 2, "gracePeriodSeconds": 90})
    pods = trainer_pods(desired, trainer_of(desired, desired.spec.policies[0]), attempt=0)
    assert len(pods) == 2
    for number, pod in enumerate(pods):
        (container,) = pod.containers
        assert {"--nnodes=2", f"--node-rank={number}", "--nproc-per-node=2"} <= set(container.command)
        assert container.environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "90"
    fewer = job("sums", trainer={"replicas": 2, "gracePeriodSeconds": 90})
    others = trainer_pods(fewer, trainer_of(fewer, fewer.spec.policies[0]), attempt=0)
    assert pods[0].revision != others[0].revision, "a change of it restarts the group"


def test_a_rollout_pod_has_a_worker_and_an_engine_for_each_policy_as_sidecar() -> None:
    desired = job("sums", policies=2, pools=[{"name": "both"}])
    (pod,) = pool_pods(desired, desired.spec.pools[0], replicas=1)
    assert [(container.name, container.sidecar) for container in pod.containers] == [
        ("engine-solver", True),
        ("engine-judge", True),
        ("worker", False),
    ]
    assert pod.containers[0].ports == ("ENGINE_PORT_SOLVER",)
    urls = "solver=http://127.0.0.1:$(ENGINE_PORT_SOLVER),judge=http://127.0.0.1:$(ENGINE_PORT_JUDGE)"
    assert pod.containers[2].environment["TRIMTAB_ENGINES"] == urls
    pods = pool_pods(desired, desired.spec.pools[0], replicas=3)
    assert [pod.name for pod in pods] == [f"sums-both-rollout-{number}" for number in range(3)]
    assert pods[0].containers[2].environment["TRIMTAB_POD__POOL"] == "both"


def test_a_policy_has_as_many_engines_in_a_pod_as_the_pool_says() -> None:
    engines = [{"policy": "solver", "replicas": 3, "args": ["--device=cpu"]}, {"policy": "judge"}]
    desired = job("sums", policies=2, pools=[{"name": "wide", "engine": {"args": ["--log"]}, "engines": engines}])
    (pod,) = pool_pods(desired, desired.spec.pools[0], replicas=1)
    names = ["engine-solver", "engine-2-solver", "engine-3-solver", "engine-judge", "worker"]
    assert [container.name for container in pod.containers] == names
    ports = [container.ports for container in pod.containers[:-1]]
    assert ports == [
        ("ENGINE_PORT_SOLVER",),
        ("ENGINE_PORT_2_SOLVER",),
        ("ENGINE_PORT_3_SOLVER",),
        ("ENGINE_PORT_JUDGE",),
    ]
    third, judge, worker = pod.containers[2:]
    assert third.command[3:5] == ("--log", "--device=cpu")
    assert "--port=$(ENGINE_PORT_3_SOLVER)" in third.command
    assert "--device=cpu" not in judge.command
    assert worker.environment["TRIMTAB_ENGINES"].split(",") == [
        "solver=http://127.0.0.1:$(ENGINE_PORT_SOLVER)",
        "solver=http://127.0.0.1:$(ENGINE_PORT_2_SOLVER)",
        "solver=http://127.0.0.1:$(ENGINE_PORT_3_SOLVER)",
        "judge=http://127.0.0.1:$(ENGINE_PORT_JUDGE)",
    ]


def test_a_frozen_policy_on_an_endpoint_has_no_engine_in_the_pod_and_its_key_is_a_secret() -> None:
    endpoint = {"name": "anthropic", "url": "https://llm", "model": "m", "apiKeySecret": {"name": "keys", "key": "k"}}
    desired = job(
        "sums",
        policies=[{"name": "solver"}, {"name": "the-judge", "frozen": True}],
        pools=[{"name": "one", "engines": [{"policy": "solver"}, {"policy": "the-judge", "endpoint": endpoint}]}],
    )
    (pod,) = pool_pods(desired, desired.spec.pools[0], replicas=1)
    assert [container.name for container in pod.containers] == ["engine-solver", "worker"]
    worker = pod.containers[-1]
    assert worker.environment["TRIMTAB_ENGINES"] == "solver=http://127.0.0.1:$(ENGINE_PORT_SOLVER)"
    assert worker.secrets == {"TRIMTAB_ENDPOINT_KEYS__THE_JUDGE": SecretKey(name="keys", key="k")}


def test_the_dataflow_is_replaced_when_a_batch_size_has_changed() -> None:
    def revision(**policy: Any) -> str:
        return dataflow_pods(job("sums", policies=[{"name": "solver", **policy}]))[0].revision

    assert revision() != revision(batchSize=8)
    assert revision() == revision(sampling={"maxTokens": 7})


def test_sglang_is_launched_with_the_manifests_interpreter_and_arguments() -> None:
    engine = {"name": "sglang", "args": ["--tp-size=2", "--trust-remote-code"], "startupTimeoutSeconds": 900}
    desired = job("sums", pools=[{"name": "gpu", "engine": engine | {"interpreter": "/opt/sglang/bin/python"}}])
    (pod,) = pool_pods(desired, desired.spec.pools[0], replicas=1)
    container, worker = pod.containers
    assert (container.name, container.sidecar, container.ports) == ("engine-solver", True, ("ENGINE_PORT_SOLVER",))
    assert container.command == (
        "python", "-m", "trimtab.rollout.engines.sglang",
        "--model-path=$(JOB_FOLDER)/model", "--port=$(ENGINE_PORT_SOLVER)", "--startup-timeout-seconds=900",
        "--interpreter=/opt/sglang/bin/python", "--", "--tp-size=2", "--trust-remote-code",
    )  # fmt: skip
    assert worker.environment["TRIMTAB_ENGINES"] == "solver=http://127.0.0.1:$(ENGINE_PORT_SOLVER)"


def test_the_built_in_engine_takes_arguments_too_and_the_last_word_is_ours() -> None:
    desired = job("sums", pools=[{"name": "home", "engine": {"args": ["--device=cpu", "--port=1"]}}])
    (pod,) = pool_pods(desired, desired.spec.pools[0], replicas=1)
    assert pod.containers[0].command == (
        "python", "-m", "trimtab.rollout.engines.builtin", "--device=cpu", "--port=1",
        "--model-path=$(JOB_FOLDER)/model", "--port=$(ENGINE_PORT_SOLVER)", "--rounded-to=bfloat16",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "rounds"),
    [
        ({}, True),
        ({"trainer": TrainerSettings(dtype="float32")}, False),
        ({"frozen": True}, False),
        ({"lora": Lora(rank=8)}, False),
    ],
    ids=["bfloat16", "float32", "frozen", "lora"],
)
def test_the_first_weights_are_rounded_as_the_later_ones_are_published(change: dict[str, Any], rounds: bool) -> None:
    desired = job("sums", pools=[{"name": "home"}])
    (policy,) = desired.spec.policies
    policies = (policy.model_copy(update=change),)
    changed = desired.model_copy(update={"spec": desired.spec.model_copy(update={"policies": policies})})
    (pod,) = pool_pods(changed, changed.spec.pools[0], replicas=1)
    assert ("--rounded-to=bfloat16" in pod.containers[0].command) == rounds


@pytest.mark.parametrize(("uri", "rounds"), [("model", True), ("another", False)])
def test_a_reference_is_what_the_policy_begins_as(uri: str, rounds: bool) -> None:
    """Or there would be a distance between them before the first step."""
    desired = job("sums", pools=[{"name": "home"}])
    (policy,) = desired.spec.policies
    reference = policy.model_copy(update={"name": "reference", "frozen": True, "model": Model(uri=uri)})
    spec = desired.spec.model_copy(update={"policies": (policy, reference)})
    (pod,) = pool_pods(desired.model_copy(update={"spec": spec}), spec.pools[0], replicas=1)
    commands = {container.name: container.command for container in pod.containers}
    assert "--rounded-to=bfloat16" in commands["engine-solver"]
    assert ("--rounded-to=bfloat16" in commands["engine-reference"]) == rounds


def test_a_relative_interpreter_is_looked_for_beside_the_manifest() -> None:
    desired = job("sums", pools=[{"name": "gpu", "engine": {"name": "sglang", "interpreter": "venv/bin/python"}}])
    (pod,) = pool_pods(desired, desired.spec.pools[0], replicas=1)
    assert "--interpreter=$(JOB_FOLDER)/venv/bin/python" in pod.containers[0].command


@pytest.mark.parametrize(
    "engine",
    [{"name": "sglang", "url": "http://gpu:30000"}, {"name": "openai", "url": "http://gpu:30000", "model": "large"}],
    ids=lambda engine: str(engine["name"]),
)
def test_an_engine_with_a_url_has_no_container(engine: dict[str, Any]) -> None:
    desired = job("sums", pools=[{"name": "remote", "engine": engine}])
    (pod,) = pool_pods(desired, desired.spec.pools[0], replicas=1)
    (worker,) = pod.containers
    assert worker.name == "worker"
    assert worker.environment["TRIMTAB_ENGINES"] == "solver=http://gpu:30000"


def test_no_two_pods_of_a_job_share_a_name() -> None:
    desired = job("sums", policies=2, pools=[{"name": "solver"}, {"name": "judge"}])
    pods = [*dataflow_pods(desired)]
    for policy in desired.spec.policies:
        pods += trainer_pods(desired, trainer_of(desired, policy), attempt=0)
    for pool in desired.spec.pools:
        pods += pool_pods(desired, pool, replicas=2)
    assert len({pod.name for pod in pods}) == len(pods)


def test_only_the_worker_of_an_endpoint_gets_its_key() -> None:
    secret = {"name": "endpoint", "key": "api-key"}
    engine = {"name": "openai", "url": "http://gpu:30000", "model": "large", "apiKeySecret": secret}
    desired = job("sums", pools=[{"name": "remote", "engine": engine}, {"name": "local"}])
    (remote,), (local,) = (pool_pods(desired, pool, replicas=1) for pool in desired.spec.pools)
    assert remote.containers[0].secrets == {"TRIMTAB_ENGINE__API_KEY": SecretKey(name="endpoint", key="api-key")}
    others = [*local.containers, *dataflow_pods(desired)[0].containers]
    others += trainer_pods(desired, trainer_of(desired, desired.spec.policies[0]), attempt=0)[0].containers
    assert not any(container.secrets for container in others)


def test_a_template_may_name_another_trainer() -> None:
    container = {"name": "trainer", "command": ["python", "$(JOB_FOLDER)/mine.py"], "args": ["--fast"]}
    desired = job("sums")
    policy = desired.spec.policies[0]
    own = policy.model_copy(
        update={"trainer": policy.trainer.model_copy(update={"template": {"spec": {"containers": [container]}}})}
    )
    (ours,), (theirs,) = (
        trainer_pods(desired, trainer_of(desired, each), attempt=2)[0].containers for each in (policy, own)
    )
    assert "trimtab.trainer" in ours.command
    assert theirs.command == ("python", "$(JOB_FOLDER)/mine.py", "--fast")
    assert theirs.environment == ours.environment


def test_a_pod_is_out_of_date_when_what_it_was_made_from_has_changed_and_only_then() -> None:
    desired = job("sums")
    plain = pool_pods(desired, desired.spec.pools[0], replicas=2)
    assert plain[0].revision == plain[1].revision != ""
    for same in (job("sums", pools=[{"name": "local", "replicas": 9}]), job("sums", maxSteps=5)):
        assert pool_pods(same, same.spec.pools[0], replicas=1)[0].revision == plain[0].revision
    for other in (
        job("sums", pools=[{"name": "local", "maxConcurrency": 3}]),
        job("sums", workflow={"args": {"system": "be brief"}}),
    ):
        assert pool_pods(other, other.spec.pools[0], replicas=1)[0].revision != plain[0].revision
    for algorithm, told_anew in (({"name": "rloo"}, False), ({"credit": {"type": "Turn"}}, True)):
        policy = desired.spec.policies[0].model_copy(update={"algorithm": Algorithm.model_validate(algorithm)})
        other = desired.model_copy(update={"spec": desired.spec.model_copy(update={"policies": (policy,)})})
        (pod,) = pool_pods(other, other.spec.pools[0], replicas=1)
        assert (pod.revision != plain[0].revision) is told_anew
    group = trainer_of(desired, desired.spec.policies[0])
    first, second = (trainer_pods(desired, group, attempt=attempt)[0].revision for attempt in (1, 2))
    assert first == second


def test_a_pool_has_engines_for_what_its_roles_and_stages_ask() -> None:
    staged = parse(staged_job())
    assert isinstance(staged, RLJob)
    home, spot = staged.spec.pools
    (rollouts,), (scorers,) = pool_pods(staged, home, replicas=1), pool_pods(staged, spot, replicas=1)
    assert [one.name for one in rollouts.containers] == ["engine-solver", "engine-critic", "worker"]
    assert [one.name for one in scorers.containers] == ["engine-reference", "worker"]
    assert [("--value-head" in one.command) for one in rollouts.containers] == [False, True, False]
    assert (
        scorers.containers[-1].environment["TRIMTAB_ENGINES"] == "reference=http://127.0.0.1:$(ENGINE_PORT_REFERENCE)"
    )


def test_pods_are_replaced_when_their_stages_have_changed() -> None:
    staged, other = parse(staged_job()), parse(changed(staged_job(), {"spec.stages.2.timeoutSeconds": 7}))
    assert isinstance(staged, RLJob)
    assert isinstance(other, RLJob)
    revisions = [[pool_pods(one, pool, replicas=1)[0].revision for pool in one.spec.pools] for one in (staged, other)]
    assert revisions[0][0] != revisions[1][0], "home runs it"
    assert revisions[0][1] == revisions[1][1], "spot does not"
    assert dataflow_pods(staged)[0].revision != dataflow_pods(other)[0].revision


def test_pods_that_go_by_the_staleness_bound_or_the_archive_start_again_when_it_changes() -> None:
    def revisions(**data: Any) -> tuple[str, str]:
        asked = job("sums", data=data)
        (pool, *_), (policy, *_) = asked.spec.pools, asked.spec.policies
        group = trainer_of(asked, policy)
        return trainer_pods(asked, group, attempt=1)[0].revision, pool_pods(asked, pool, replicas=1)[0].revision

    trainer, rollout = revisions()
    assert revisions(maxStaleness=5)[0] != trainer
    assert revisions(maxStaleness=5)[1] != rollout, "it would run episodes that come too late"
    assert revisions(archive={})[0] != trainer, "its ranks write it"
    assert revisions(archive={})[1] == rollout
