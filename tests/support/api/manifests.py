"""Good manifests of every kind, and the one table of bad ones that the offline checker and the API server must both
refuse."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]

REMOVED = object()
_AFTER = {"needs": ["reference"]}


def job(name: str = "arithmetic") -> Manifest:
    return _object(
        "RLJob",
        name,
        {
            "maxSteps": 100,
            "workflow": {"entrypoint": "team.workflows:SolverVerifier"},
            "data": {"prompts": [{"name": "train", "jsonl": {"uri": "s3://prompts/train.jsonl"}}]},
            "policies": [
                {"name": "solver", "model": {"uri": "/models/solver"}},
                {"name": "verifier", "model": {"uri": "/models/verifier"}},
            ],
            "pools": [{"name": "home", "replicas": 2}, {"name": "spot"}],
        },
    )


def staged_job(name: str = "staged") -> Manifest:
    """A reference of its own pool, a critic that learns from the solver's rows, and a judge that needs the first."""
    return changed(
        job(name),
        {
            "spec.workflow.roles": [{"name": "solver", "policy": "solver"}],
            "spec.policies.1": {"name": "critic", "model": {"uri": "/models/critic"}},
            "spec.policies.2": {"name": "reference", "model": {"uri": "/models/solver"}, "frozen": True},
            "spec.data.mix": [{"policy": "critic", "streams": [{"policy": "solver"}]}],
            "spec.pools.1": {"name": "spot", "rollouts": False},
            "spec.stages": [
                {"name": "reference", "computes": "Logprobs", "policy": "reference", "pool": "spot"},
                {"name": "values", "computes": "Values", "policy": "critic"},
                {"name": "judge", "computes": "Reward", "plugin": {"entrypoint": "team.judges:Own"}, **_AFTER},
            ],
        },
    )


def pool(name: str = "arithmetic-burst") -> Manifest:
    return _object("RolloutPool", name, {"jobRef": {"name": "arithmetic"}, "replicas": 2})


def trainer(name: str = "arithmetic-solver") -> Manifest:
    return _object("Trainer", name, {"jobRef": {"name": "arithmetic"}, "policy": "solver"})


def changed(manifest: Manifest, changes: dict[str, Any]) -> Manifest:
    """A copy with fields set, or REMOVED, by dotted path; a number in a path is a place in a list."""
    out = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        target: Any = out
        for step in parents:
            target = target[step] if isinstance(step, int) else target.setdefault(step, {})
        if value is REMOVED:
            del target[last]
        elif isinstance(target, list) and last == len(target):
            target.append(value)
        else:
            target[last] = value
    return out


@dataclass(frozen=True)
class Bad:
    """A manifest that must be refused with a message that names `field`."""

    id: str
    field: str
    manifest: Manifest


def _object(kind: str, name: str, spec: dict[str, Any]) -> Manifest:
    return {"apiVersion": "rl.trimtab.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _job(case: str, field: str, changes: dict[str, Any]) -> Bad:
    return Bad(case, field, changed(job(), changes))


def _staged(case: str, field: str, changes: dict[str, Any]) -> Bad:
    return Bad(case, field, changed(staged_job(), changes))


def _pool(case: str, field: str, changes: dict[str, Any]) -> Bad:
    return Bad(case, field, changed(pool(), changes))


def _trainer(case: str, field: str, changes: dict[str, Any]) -> Bad:
    return Bad(case, field, changed(trainer(), changes))


_TWO_SELECTIONS = {"selection": {"entrypoint": "a:B"}, "replay": {"ratio": 0.5}}
_SERVED = {"policy": "solver"}
_ASKED = {"policy": "verifier", "endpoint": {"name": "openai", "url": "https://llm", "model": "m"}}
_SECRET = {"name": "keys", "key": "token"}

_KEY = f"{'A' * 43}="

_CRITIC = {"stage": "values"}
_BAD_ALGORITHMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("two-references", ".kl", {"name": "grpo", "kl": {"coefficient": 1, "reference": "/m", "stage": "s"}}),
    ("stage-for-nothing", ".kl.stage", {"name": "grpo", "kl": {"stage": "s"}}),
    ("no-teacher", ".distill", {"name": "distill"}),
    ("teacher-elsewhere", ".distill", {"name": "grpo", "distill": {"stage": "s"}}),
    ("teacher-unnamed", ".distill.stage", {"name": "distill", "distill": {}}),
    (
        "rewards-for-nothing",
        ".distill.rewardWeight",
        {"name": "distill", "distill": {"stage": "s"}, "normalizeGroupRewards": True},
    ),
    ("no-critic", ".critic", {"name": "critic"}),
    ("critic-elsewhere", ".critic", {"name": "grpo", "critic": _CRITIC}),
    ("critic-lambda", ".critic.lambda", {"name": "ppo", "critic": {**_CRITIC, "lambda": 1.1}}),
    ("critic-kl", ".kl", {"name": "critic", "critic": _CRITIC, "kl": {"coefficient": 0.1}}),
    ("critic-entropy", ".entropyCoefficient", {"name": "critic", "critic": _CRITIC, "entropyCoefficient": 0.1}),
    (
        "critic-normalized",
        ".normalizeBatchAdvantages",
        {"name": "critic", "critic": _CRITIC, "normalizeBatchAdvantages": True},
    ),
    ("critic-correction", ".correction", {"name": "critic", "critic": _CRITIC, "correction": {"type": "Mask"}}),
    ("critic-dual", ".clip.dual", {"name": "critic", "critic": _CRITIC, "clip": {"dual": 2}}),
    ("critic-group", ".normalizeGroupRewards", {"name": "ppo", "critic": _CRITIC, "normalizeGroupRewards": False}),
    (
        "critic-credit",
        ".credit.discount",
        {"name": "ppo", "critic": _CRITIC, "credit": {"type": "Turn", "discount": 0.5}},
    ),
    ("no-custom", ".custom", {"name": "custom"}),
    ("custom-unnamed", ".custom", {"custom": {"entrypoint": "a:B"}}),
    ("custom-form", ".custom.entrypoint", {"name": "custom", "custom": {"entrypoint": "a.b"}}),
)

_KL = {"name": "grpo", "kl": {"coefficient": 0.1, "stage": "reference"}}
_TO_CRITIC = {"name": "critic", "critic": _CRITIC}
_BAD_COLUMNS: tuple[tuple[str, str, int, dict[str, Any], dict[str, Any]], ...] = (
    ("of-nobody", "spec.policies", 0, {"name": "grpo", "kl": {"coefficient": 0.1, "stage": "other"}}, {}),
    ("of-another-kind", "spec.policies", 0, {"name": "grpo", "kl": {"coefficient": 0.1, "stage": "values"}}, {}),
    ("teacher-of-another-kind", "spec.policies", 0, {"name": "distill", "distill": {"stage": "judge"}}, {}),
    ("values-of-another-kind", "spec.policies", 0, {"name": "ppo", "critic": {"stage": "reference"}}, {}),
    (
        "of-other-rows",
        "spec.stages",
        0,
        _KL,
        {
            "spec.workflow.roles.1": {"name": "helper", "policy": "critic"},
            "spec.stages.0.rows": ["critic"],
        },
    ),
    (
        "of-other-mixed-rows",
        "spec.stages",
        1,
        _TO_CRITIC,
        {
            "spec.policies.3": {"name": "helper", "model": {"uri": "/m"}},
            "spec.workflow.roles.1": {"name": "helper", "policy": "helper"},
            "spec.stages.1.rows": ["helper"],
        },
    ),
    ("critic-speaks", "spec.workflow.roles", 1, _TO_CRITIC, {"spec.workflow.roles.0.policy": "critic"}),
    ("critic-has-no-logprobs", "spec.stages", 1, _TO_CRITIC, {"spec.stages.0.policy": "critic"}),
    ("of-some-tokens", "spec.policies[0].sampling", 0, _KL, {"spec.policies.0.sampling": {"topK": 20}}),
)

BAD_MANIFESTS = [
    # What must be there.
    _job("no-spec", "spec", {"spec": REMOVED}),
    _job("no-workflow", "spec.workflow", {"spec.workflow": REMOVED}),
    _job("no-entrypoint", "spec.workflow.entrypoint", {"spec.workflow": {"args": {}}}),
    _job("no-prompts", "spec.data.prompts", {"spec.data.prompts": []}),
    _job("no-policies", "spec.policies", {"spec.policies": []}),
    _job("no-pools", "spec.pools", {"spec.pools": []}),
    _job("no-model", "spec.policies[0].model", {"spec.policies.0.model": REMOVED}),
    _job("no-end", "spec.maxSteps", {"spec.maxSteps": REMOVED}),
    _pool("pool-no-job", "spec.jobRef", {"spec.jobRef": REMOVED}),
    _trainer("trainer-no-policy", "spec.policy", {"spec.policy": REMOVED}),
    # Fields nobody knows.
    _job("unknown-top", "spec.polices", {"spec.polices": []}),
    _job("unknown-nested", "spec.data.groupsize", {"spec.data.groupsize": 8}),
    _job("unknown-in-list", "spec.pools[0].engine.nmae", {"spec.pools.0.engine.nmae": "sglang"}),
    # Types, ranges and forms of single fields.
    _job("text-for-number", "spec.data.groupSize", {"spec.data.groupSize": "8"}),
    _job("number-for-text", "spec.workflow.entrypoint", {"spec.workflow.entrypoint": 7}),
    _job("text-for-boolean", "spec.suspend", {"spec.suspend": "true"}),
    _job("part-of-a-step", "spec.maxSteps", {"spec.maxSteps": 1.5}),
    _job("list-for-mapping", "spec.data", {"spec.data": []}),
    _job("mapping-for-list", "spec.pools", {"spec.pools": {"name": "home"}}),
    _job("resume-from-nothing", "spec.resumeFrom", {"spec.resumeFrom": {"step": 3}}),
    _job(
        "resume-from-both", "spec.resumeFrom", {"spec.resumeFrom": {"job": "a", "checkpoint": "/c", "publicKey": _KEY}}
    ),
    _job("resume-elsewhere", "spec.resumeFrom.job", {"spec.resumeFrom": {"job": "other-namespace/a"}}),
    _job("resume-unsigned", "spec.resumeFrom.publicKey", {"spec.resumeFrom": {"checkpoint": "s3://kept/ns/j"}}),
    _job("resume-key", "publicKey", {"spec.resumeFrom": {"checkpoint": "/c", "publicKey": "none"}}),
    _job("resume-worst", "spec.resumeFrom.step", {"spec.resumeFrom": {"job": "a", "step": "Worst"}}),
    _job("null-step", "spec.maxSteps", {"spec.maxSteps": None}),
    _job("entrypoint-form", "spec.workflow.entrypoint", {"spec.workflow.entrypoint": "team/workflows.py"}),
    _job("negative-staleness", "spec.data.maxStaleness", {"spec.data.maxStaleness": -1}),
    _job("zero-batch", "spec.data.batchSize", {"spec.data.batchSize": 0}),
    _job("unknown-algorithm", "spec.policies[0].algorithm.name", {"spec.policies.0.algorithm.name": "trpo"}),
    _job("zero-rate", "learningRate", {"spec.policies.0.algorithm.optimizer.learningRate": 0}),
    _job("unknown-engine", "spec.pools[0].engine.name", {"spec.pools.0.engine.name": "tgi"}),
    _job("negative-replicas", "spec.pools[0].replicas", {"spec.pools.0.replicas": -1}),
    _job("too-many-replicas", "spec.pools[0].replicas", {"spec.pools.0.replicas": 10_001}),
    _job("no-ranks", "spec.policies[0].trainer.replicas", {"spec.policies.0.trainer.replicas": 0}),
    _job("unknown-mode", "spec.autoscaling.mode", {"spec.autoscaling.mode": "On"}),
    _job("foreign-manager", "spec.managedBy", {"spec.managedBy": "example.com/other"}),
    _job("bad-quantity", "spec.pools[0].resources.limits", {"spec.pools.0.resources.limits": {"memory": "16 GB"}}),
    _job("bad-percent", "spec.pools[0].update.maxUnavailable", {"spec.pools.0.update.maxUnavailable": "120%"}),
    _job("negative-surge", "spec.pools[0].update.maxSurge", {"spec.pools.0.update.maxSurge": -1}),
    _job("negative-memory", "spec.pools[0].resources.limits", {"spec.pools.0.resources.limits": {"memory": "-1Gi"}}),
    _job("upper-case-member", "spec.policies[0].name", {"spec.policies.0.name": "Solver"}),
    _job("long-member", "spec.pools[0].name", {"spec.pools.0.name": "p" * 41}),
    _job("temperature", "spec.policies[0].sampling.temperature", {"spec.policies.0.sampling.temperature": -0.1}),
    _job("top-p", "spec.policies[0].sampling.topP", {"spec.policies.0.sampling.topP": 0}),
    _job("min-p", "spec.policies[0].sampling.minP", {"spec.policies.0.sampling.minP": 1.1}),
    _job("credit-discount", "credit.discount", {"spec.policies.0.algorithm.credit": {"discount": 0.9}}),
    _job("credit-outcome", "credit.outcomeWeight", {"spec.policies.0.algorithm.credit": {"outcomeWeight": 0.5}}),
    _job("credit-beyond", "credit.discount", {"spec.policies.0.algorithm.credit": {"type": "Turn", "discount": 1.5}}),
    _job("replay-all", "spec.data.replay.ratio", {"spec.data.replay.ratio": 1}),
    _job("shrink-margin", "spec.autoscaling.shrinkMargin", {"spec.autoscaling.shrinkMargin": 0.9}),
    _job(
        "exit-code",
        "spec.failurePolicy.onExit[0].exitCodes",
        {"spec.failurePolicy.onExit": [{"exitCodes": [0], "action": "Fail"}]},
    ),
    _pool("pool-url-form", "spec.engine.url", {"spec.engine": {"name": "sglang", "url": "sglang:30000"}}),
    # Names and references.
    _job("twice-a-policy", "spec.policies[1]", {"spec.policies.1.name": "solver"}),
    _job("twice-a-pool", "spec.pools[1]", {"spec.pools.1.name": "home"}),
    _job(
        "engines-twice",
        "spec.pools[1].engines[2]",
        {"spec.pools.1.engines": [{"policy": "solver"}, {"policy": "verifier"}, {"policy": "solver"}]},
    ),
    _job(
        "reserved-policy",
        "spec.policies[0].name",
        {"spec.policies.0.name": "dataflow", "spec.pools.1": {"name": "spot"}},
    ),
    _job("model-elsewhere", "spec.policies[0].model.uri", {"spec.policies.0.model.uri": "https://models/solver"}),
    _job("model-without-an-owner", "spec.policies[0].model.uri", {"spec.policies.0.model.uri": "hf://solver@v1"}),
    _job("model-outside", "spec.policies[0].model.uri", {"spec.policies.0.model.uri": "s3://models/../solver"}),
    _job("tokenizer-elsewhere", "model.tokenizer", {"spec.policies.0.model.tokenizer": "gs://models/words"}),
    _job("prompts-of-a-model", "jsonl.uri", {"spec.data.prompts.0.jsonl.uri": "hf://team/sums/train.jsonl"}),
    _job("reserved-pool", "spec.pools[0].name", {"spec.pools.0.name": "dataflow"}),
    _job(
        "unknown-policy",
        "spec.pools",
        {"spec.pools.1.engines": [{"policy": "solver"}, {"policy": "verifier"}, {"policy": "critic"}]},
    ),
    _job("unserved-policy", "spec.pools", {"spec.pools.1.engines": [{"policy": "solver", "replicas": 3}]}),
    _job("no-engines", "spec.pools[1].engines[0].replicas", {"spec.pools.1.engines": [{"policy": "a", "replicas": 0}]}),
    _job("endpoint-of-a-learner", "spec.pools", {"spec.pools.1.engines": [_SERVED, {**_SERVED, **_ASKED}]}),
    _job("frozen-without-a-model", "spec.policies", {"spec.policies.1": {"name": "verifier", "frozen": True}}),
    _job("learner-without-a-model", "spec.policies[1].model", {"spec.policies.1": {"name": "verifier"}}),
    _job("all-frozen", "spec.policies", {"spec.policies.0.frozen": True, "spec.policies.1.frozen": True}),
    _job(
        "frozen-stream",
        "spec.data.mix",
        {
            "spec.policies.1.frozen": True,
            "spec.data.mix": [{"policy": "solver", "streams": [{"policy": "verifier"}]}],
        },
    ),
    _job(
        "frozen-batch",
        "spec.policies[1].batchSize",
        {"spec.policies.1.frozen": True, "spec.policies.1.batchSize": 8},
    ),
    _job(
        "frozen-adapters",
        "spec.policies[1].lora",
        {"spec.policies.1.frozen": True, "spec.policies.1.lora": {"rank": 8}},
    ),
    _job("lora-without-rank", "spec.policies[0].lora.rank", {"spec.policies.0.lora": {"targets": ["q_proj"]}}),
    _job("lora-rank", "spec.policies[0].lora.rank", {"spec.policies.0.lora": {"rank": 257}}),
    _job("lora-alpha", "spec.policies[0].lora.alpha", {"spec.policies.0.lora": {"rank": 8, "alpha": 0}}),
    _job("lora-of-nothing", "spec.policies[0].lora.targets", {"spec.policies.0.lora": {"rank": 8, "targets": []}}),
    _job("lora-target", "lora.targets[0]", {"spec.policies.0.lora": {"rank": 8, "targets": ["lm_head"]}}),
    _job("lora-twice", "lora.targets[1]", {"spec.policies.0.lora": {"rank": 8, "targets": ["q_proj", "q_proj"]}}),
    _job("policy-without-role", "spec.workflow.roles", {"spec.workflow.roles": [{"name": "a", "policy": "solver"}]}),
    _job(
        "published-too-rarely",
        "spec.data.maxStaleness",
        {"spec.data.maxStaleness": 1, "spec.policies.0.trainer.publish.everySteps": 3},
    ),
    _job(
        "unknown-role-policy", "spec.workflow.roles", {"spec.workflow.roles": [{"name": "critic", "policy": "critic"}]}
    ),
    _job(
        "unknown-mix-policy",
        "spec.data.mix",
        {"spec.data.mix": [{"policy": "critic", "streams": [{"policy": "solver"}]}]},
    ),
    _job(
        "unknown-mix-stream",
        "spec.data.mix",
        {"spec.data.mix": [{"policy": "solver", "streams": [{"policy": "critic"}]}]},
    ),
    *(
        _staged(f"column-{case}", field, {f"spec.policies.{policy}.algorithm": algorithm, **more})
        for case, field, policy, algorithm, more in _BAD_COLUMNS
    ),
    _staged("stage-twice", "spec.stages[1]", {"spec.stages.1.name": "reference"}),
    _staged("stage-needs-a-later-one", "spec.stages", {"spec.stages.0.needs": ["judge"]}),
    _staged("stage-needs-itself", "spec.stages", {"spec.stages.0.needs": ["reference"]}),
    _staged("stage-needs-nobody", "spec.stages", {"spec.stages.2.needs": ["verdict"]}),
    _staged("stage-needs-twice", "spec.stages[2].needs[1]", {"spec.stages.2.needs": ["reference", "reference"]}),
    _staged("stage-of-no-policy", "spec.stages", {"spec.stages.0.policy": "teacher"}),
    _staged("stage-in-no-pool", "spec.stages", {"spec.stages.0.pool": "far"}),
    _staged("stage-of-nothing", "spec.stages[0].computes", {"spec.stages.0.computes": "Entropy"}),
    _staged("stage-without-policy", "spec.stages[0].policy", {"spec.stages.0.policy": REMOVED}),
    _staged("stage-without-plugin", "spec.stages[2].plugin", {"spec.stages.2.plugin": REMOVED}),
    _staged("stage-of-frozen-rows", "spec.stages", {"spec.stages.0.rows": ["reference"]}),
    _staged("stage-of-rows-of-no-role", "spec.stages", {"spec.stages.0.rows": ["critic"]}),
    _staged("stage-asks-a-policy-without-engine", "spec.pools", {"spec.pools.0.engines": [{"policy": "solver"}]}),
    _staged("stage-pool-without-engine", "spec.pools", {"spec.pools.1.engines": [{"policy": "solver"}]}),
    _staged("values-of-sglang", "spec.stages", {"spec.pools.0.engine.name": "sglang"}),
    _staged(
        "logprobs-of-an-endpoint",
        "spec.stages",
        {"spec.pools.1.engines": [{**_ASKED, "policy": "reference"}]},
    ),
    _staged("values-of-a-role", "spec.stages", {"spec.stages.1.policy": "solver"}),
    _staged("words-of-a-critic", "spec.stages", {"spec.stages.0.policy": "critic"}),
    _staged("turn-rewards-without-turns", "spec.stages", {"spec.stages.2.computes": "TurnRewards"}),
    _staged("stage-of-a-bare-policy", "spec.policies", {"spec.policies.2.model": REMOVED}),
    _staged("no-rollouts", "spec.pools", {"spec.pools.0.rollouts": False}),
    _staged("idle-stage-pool", "spec.pools", {"spec.stages.0.pool": "home"}),
    _staged("stages-without-roles", "spec.workflow.roles", {"spec.workflow.roles": []}),
    _staged("learner-without-samples", "spec.workflow.roles", {"spec.data.mix": []}),
    _staged("stream-without-role", "spec.data.mix", {"spec.data.mix.0.streams.1": {"policy": "critic"}}),
    _job("dotted-name", "metadata.name", {"metadata.name": "my.job"}),
    _job("digit-first-name", "metadata.name", {"metadata.name": "7b-run"}),
    _job("upper-case-name", "metadata.name", {"metadata.name": "MyJob"}),
    _job("long-name", "metadata.name", {"metadata.name": "j" * 48}),
    _job("long-name-and-pool", "spec.pools", {"metadata.name": "j" * 20, "spec.pools.0.name": "p" * 29}),
    _job("long-name-and-policy", "spec.policies", {"metadata.name": "j" * 42}),
    _pool("pool-long-name", "metadata.name", {"metadata.name": "p" * 50}),
    _trainer("trainer-long-name", "metadata.name", {"metadata.name": "t" * 50}),
    # Fields that must agree.
    _job("split-group", "spec.data.batchSize", {"spec.data.groupSize": 7}),
    _job("split-group-of-a-policy", "spec.policies", {"spec.policies.1.batchSize": 12}),
    _job("idle-ranks", "spec.data.batchSize", {"spec.policies.0.trainer.replicas": 512}),
    _job(
        "idle-devices",
        "spec.data.batchSize",
        {"spec.policies.0.trainer": {"replicas": 3, "devicesPerReplica": 3}, "spec.policies.0.batchSize": 8},
    ),
    _job(
        "fewer-gpus-than-ranks",
        "spec.policies[0].trainer.devicesPerReplica",
        {"spec.policies.0.trainer": {"devicesPerReplica": 8, "resources": {"limits": {"nvidia.com/gpu": 4}}}},
    ),
    _trainer(
        "idle-gpus",
        "spec.devicesPerReplica",
        {"spec.devicesPerReplica": 2, "spec.resources": {"limits": {"amd.com/gpu": "8"}}},
    ),
    _job(
        "idle-ranks-of-a-policy",
        "spec.data.batchSize",
        {"spec.policies.0.trainer.replicas": 9, "spec.policies.0.batchSize": 8},
    ),
    _job("tau", "spec.autoscaling.tauLow", {"spec.autoscaling.tauLow": 0.2}),
    _job("fleet-bounds", "spec.autoscaling.minReplicas", {"spec.autoscaling": {"minReplicas": 9, "maxReplicas": 8}}),
    _job("auto-without-bound", "spec.autoscaling.maxReplicas", {"spec.autoscaling.mode": "Auto"}),
    _job("agent-missing", "spec.autoscaling.maintainer.agent", {"spec.autoscaling.maintainer.type": "Agent"}),
    _job(
        "agent-unused",
        "spec.autoscaling.maintainer.agent",
        {"spec.autoscaling.maintainer.agent": {"model": "claude", "apiKeySecret": _SECRET}},
    ),
    _job("pool-bounds", "spec.pools[0].minReplicas", {"spec.pools.0.minReplicas": 5, "spec.pools.0.maxReplicas": 4}),
    _job("replicas-above", "spec.pools[0].replicas", {"spec.pools.0.replicas": 5, "spec.pools.0.maxReplicas": 4}),
    _pool("replicas-below", "spec.replicas", {"spec.minReplicas": 3}),
    _pool("nothing-may-move", "spec.update", {"spec.update": {"maxUnavailable": 0, "maxSurge": "0%"}}),
    _job(
        "length-filter",
        "spec.data.filter.length.minTokens",
        {"spec.data.filter.length": {"minTokens": 9, "maxTokens": 8}},
    ),
    _job(
        "schedule",
        "spec.policies[0].algorithm.schedule.decaySteps",
        {"spec.policies.0.algorithm.schedule.type": "Cosine"},
    ),
    _job("m2-elsewhere", "m2Threshold", {"spec.policies.0.algorithm": {"name": "grpo", "m2Threshold": 0.01}}),
    _job("clip-elsewhere", "spec.policies[0].algorithm.clip", {"spec.policies.0.algorithm": {"clip": {"low": 0.2}}}),
    *(
        _job(f"algorithm-{case}", f"spec.policies[0].algorithm{field}", {"spec.policies.0.algorithm": algorithm})
        for case, field, algorithm in _BAD_ALGORITHMS
    ),
    _job(
        "critic-lora",
        "spec.policies[0].lora",
        {"spec.policies.0.lora": {"rank": 4}, "spec.policies.0.algorithm": {"name": "critic", "critic": _CRITIC}},
    ),
    _trainer("correction", "spec.algorithm.correction.low", {"spec.algorithm.correction": {"low": 3, "high": 2}}),
    _job("backoff", "spec.failurePolicy.backoffSeconds", {"spec.failurePolicy.backoffSeconds": 301}),
    _job("two-selections", "spec.data.selection", {"spec.data": {**job()["spec"]["data"], **_TWO_SELECTIONS}}),
    # Unions and engines.
    _job("two-sources-in-one", "spec.data.prompts[0]", {"spec.data.prompts.0.parquet": {"uri": "b.parquet"}}),
    _job("no-source-in-one", "spec.data.prompts[0]", {"spec.data.prompts": [{"name": "train"}]}),
    _job("empty-benchmark", "spec.evaluation.benchmarks[0]", {"spec.evaluation.benchmarks": [{"name": "gsm8k"}]}),
    _job("two-curators", "spec.data.curator", {"spec.data.curator": {"greso": {}, "curriculum": {}}}),
    _job("code-from-nowhere", "spec.workflow.source", {"spec.workflow.source": {}}),
    _job("openai-no-url", "spec.pools[0].engine.url", {"spec.pools.0.engine": {"name": "openai", "model": "m"}}),
    _job(
        "openai-no-model",
        "spec.pools[0].engine.model",
        {"spec.pools.0.engine": {"name": "openai", "url": "https://llm"}},
    ),
    _job("builtin-url", "spec.pools[0].engine.url", {"spec.pools.0.engine.url": "http://engine:30000"}),
    _job(
        "openai-args",
        "spec.pools[0].engine.args",
        {"spec.pools.0.engine": {"name": "openai", "url": "https://llm", "model": "m", "args": ["--tp-size=2"]}},
    ),
    _pool(
        "engines-elsewhere",
        "spec.engines",
        {"spec.engine": {"name": "sglang", "url": "http://e"}, "spec.engines": [{"policy": "solver", "replicas": 2}]},
    ),
    _pool("two-endpoints", "spec.engines[0].endpoint", {"spec.engines": [{**_SERVED, **_ASKED, "replicas": 2}]}),
    _pool(
        "unknown-endpoint",
        "spec.engines[0].endpoint.name",
        {"spec.engines": [{**_SERVED, "endpoint": {"name": "google", "url": "https://llm", "model": "m"}}]},
    ),
    _pool("key-without-url", "spec.engine.apiKeySecret", {"spec.engine": {"name": "sglang", "apiKeySecret": _SECRET}}),
    _pool(
        "interpreter-with-url",
        "spec.engine.interpreter",
        {"spec.engine": {"name": "sglang", "url": "http://e", "interpreter": "python3"}},
    ),
]
