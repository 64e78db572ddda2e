"""Manifests that use every field of the API at least once, so that nothing is only ever tested by its default."""

from __future__ import annotations

from tests.support.api.manifests import REMOVED, Manifest, changed, job, pool, staged_job, trainer

_SECRET = {"name": "keys", "key": "token"}
_TEMPLATE = {"metadata": {"labels": {"team": "rl"}}, "spec": {"nodeSelector": {"gpu": "h200"}, "anything": ["goes", 1]}}
_RESOURCES = {"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"nvidia.com/gpu": "8"}}
_SAMPLING = {"temperature": 0.6, "topP": 0.95, "topK": 20, "minP": 0.01, "maxTokens": 4096, "stop": ["</answer>"]}
_PLUGIN = {"entrypoint": "team.data:Own", "args": {"deep": {"er": [1, None, "x"]}}}
_MODEL = {"uri": "/m", "tokenizer": "/t", "maxContextTokens": 8192}
_ALGORITHM = {
    "name": "dapo",
    "clip": {"low": 0.2, "high": 0.28, "dual": 3},
    "kl": {"coefficient": 0.001, "estimator": "k2", "reference": "/models/reference"},
    "correction": {"type": "Mask", "low": 0.5, "high": 5},
    "credit": {"type": "Turn", "discount": 0.9, "outcomeWeight": 0.5},
    "overlong": {"bufferTokens": 512, "penalty": 0.5, "maskTruncated": False},
    "normalizeGroupRewards": True,
    "normalizeBatchAdvantages": True,
    "entropyCoefficient": 0.01,
    "updatesPerBatch": 2,
    "optimizer": {
        "learningRate": 1e-6,
        "beta1": 0.9,
        "beta2": 0.98,
        "epsilon": 1e-9,
        "weightDecay": 0.1,
        "maxGradNorm": 0.5,
    },
    "schedule": {"type": "Cosine", "warmupSteps": 10, "decaySteps": 500, "finalFraction": 0.1},
}
_CRITIC = {"stage": "values", "discount": 0.99, "lambda": 0.9}
_STAGED_KL = {"coefficient": 0.1, "stage": "reference"}
_WITH_COLUMNS = (
    {"name": "grpo", "kl": {"coefficient": 0.1, "stage": "reference"}},
    {"name": "distill", "distill": {"stage": "teacher", "rewardWeight": 0.5}, "credit": {"type": "Turn"}},
    {"name": "ppo", "critic": _CRITIC, "credit": {"type": "Turn", "outcomeWeight": 0.5}},
    {"name": "critic", "critic": _CRITIC, "clip": {"low": 0.5, "high": 0.5}},
    {"name": "custom", "custom": _PLUGIN, "clip": {"low": 0.1}},
)
_TRAINER = {
    "replicas": 8,
    "devicesPerReplica": 8,
    "resources": _RESOURCES,
    "template": _TEMPLATE,
    "dtype": "float32",
    "microBatchTokens": 32768,
    "gradientCheckpointing": False,
    "maxSkippedSteps": 3,
    "gracePeriodSeconds": 60,
    "publish": {
        "dtype": "float32",
        "everySteps": 2,
        "anchorEveryVersions": 50,
        "foldEveryVersions": 8,
        "keepVersions": 100,
        "codec": "compact",
    },
    "checkpoint": {"everySteps": 20, "keep": 5, "uri": "s3://checkpoints/run"},
}
_ASKED = {
    "policy": "judge",
    "endpoint": {
        "name": "anthropic",
        "url": "https://api.anthropic.com",
        "model": "claude-opus-4-6",
        "apiKeySecret": _SECRET,
        "requestTimeoutSeconds": 60,
    },
}
_POOL = {
    "engines": [
        {"policy": "solver", "replicas": 3, "args": ["--mem-fraction-static=0.8"]},
        {"policy": "verifier"},
        _ASKED,
    ],
    "replicas": 4,
    "minReplicas": 1,
    "maxReplicas": 16,
    "devicesPerReplica": 2,
    "costPerHour": 4.5,
    "priority": -5,
    "engine": {
        "name": "sglang",
        "args": ["--tp-size=2"],
        "interpreter": "/opt/sglang/bin/python",
        "resources": _RESOURCES,
        "startupTimeoutSeconds": 600,
        "requestTimeoutSeconds": 120,
    },
    "rollouts": True,
    "maxConcurrency": 128,
    "gracePeriodSeconds": 120,
    "resources": _RESOURCES,
    "template": _TEMPLATE,
    "cluster": {"kubeconfigSecret": _SECRET, "namespace": "rollout", "lostAfterSeconds": 300},
    "update": {"maxUnavailable": 1, "maxSurge": "50%"},
}
_BENCHMARK = {"samples": 4, "limit": 200, "sampling": _SAMPLING, "promptColumn": "question"}
_BEHAVIOUR = {"paused": True, "stabilizationSeconds": 30, "maxChange": 2, "periodSeconds": 120}


def complete_job() -> Manifest:
    return changed(
        job(),
        {
            "metadata.labels": {"team": "rl"},
            "metadata.annotations": {"example.com/note": "x"},
            "spec.workflow": {
                "entrypoint": "team.workflows:SolverVerifier",
                "args": {"retries": 2},
                "source": {"configMap": {"name": "workflow-code"}},
                "roles": [
                    {"name": "proposer", "policy": "solver"},
                    {"name": "verifier", "policy": "verifier"},
                    {"name": "judge", "policy": "judge"},
                ],
                "sandbox": {
                    "timeoutSeconds": 5,
                    "memoryMib": 256,
                    "processes": 16,
                    "diskMib": 32,
                    "outputKib": 64,
                    "concurrency": 4,
                    "image": "example.com/programs:1",
                    "runtimeClassName": "gvisor",
                },
                "episodeTimeoutSeconds": 120,
            },
            "spec.data": {
                "prompts": [
                    {"name": "a", "jsonl": {"uri": "a.jsonl"}, "weight": 2, "promptColumn": "question"},
                    {"name": "b", "parquet": {"uri": "s3://bucket/b"}},
                    {"name": "c", "huggingFace": {"uri": "/data/c", "split": "validation"}},
                    {"name": "d", "generator": _PLUGIN},
                ],
                "groupSize": 16,
                "batchSize": 512,
                "maxStaleness": 2,
                "archive": {"keepSteps": 50},
                "seed": 7,
                "shuffle": False,
                "epochs": 3,
                "maxPromptTokens": 2048,
                "curator": {
                    "greso": {
                        "initialProbability": 0.4,
                        "targetEasy": 0.1,
                        "targetHard": 0.2,
                        "step": 0.02,
                        "floorEasy": 0.1,
                        "floorHard": 0.2,
                        "margin": 1.5,
                    }
                },
                "filter": {
                    "zeroAdvantage": "Drop",
                    "truncated": "Drop",
                    "length": {"minTokens": 2, "maxTokens": 4096},
                    "custom": _PLUGIN,
                },
                "replay": {"ratio": 0.25, "size": 500, "maxAge": 4, "maxUses": 3},
                "routeColumn": "kind",
                "mix": [
                    {
                        "policy": "verifier",
                        "streams": [
                            {"policy": "solver", "weight": 0.3, "labels": ["sums"]},
                            {"policy": "verifier", "weight": 0.7},
                        ],
                    }
                ],
                "tasks": {"maxDeliveries": 3, "leaseSeconds": 30},
                "shards": 2,
                "template": _TEMPLATE,
            },
            "spec.policies": [*job()["spec"]["policies"], {"name": "judge", "frozen": True}],
            "spec.policies.0.algorithm": _ALGORITHM,
            "spec.policies.0.batchSize": 256,
            "spec.policies.0.sampling": _SAMPLING,
            "spec.policies.0.trainer": _TRAINER,
            "spec.policies.0.model": _MODEL,
            "spec.policies.0.lora": {"rank": 16, "alpha": 32, "targets": ["q_proj", "v_proj"]},
            "spec.policies.1.algorithm": {"name": "m2po", "m2Threshold": 0.01},
            "spec.pools.1": {"name": "spot", **_POOL},
            "spec.pools.0.engines": [{"policy": "solver"}, {"policy": "verifier"}, _ASKED],
            "spec.pools.0.engine": {"name": "openai", "url": "https://llm/v1", "model": "m", "apiKeySecret": _SECRET},
            "spec.stages": [
                {
                    "name": "own",
                    "computes": "Custom",
                    "needs": [],
                    "rows": ["solver"],
                    "policy": "judge",
                    "plugin": _PLUGIN,
                    "per": "Row",
                    "pool": "spot",
                    "timeoutSeconds": 60,
                }
            ],
            "spec.autoscaling": {
                "mode": "Auto",
                "maintainer": {
                    "type": "Agent",
                    "policy": "ThreeZone",
                    "agent": {
                        "model": "claude-opus-4-6",
                        "apiKeySecret": _SECRET,
                        "baseUrl": "http://127.0.0.1:8080",
                        "promptAdditions": "Spot nodes vanish at noon.",
                        "approval": "Apply",
                        "maxTokens": 5000,
                        "timeoutSeconds": 30,
                    },
                },
                "tauLow": 0.02,
                "tauHigh": 0.2,
                "shrinkMargin": 1.2,
                "windowSteps": 5,
                "minReplicas": 2,
                "maxReplicas": 40,
                "scaleUp": _BEHAVIOUR,
                "scaleDown": _BEHAVIOUR,
                "cooldownSeconds": 60,
                "reportTimeoutSeconds": 300,
            },
            "spec.hub": {"endpoint": "https://hub.example.org", "tokenSecret": {"name": "hub", "key": "token"}},
            "spec.tracking": [
                {
                    "type": "mlflow",
                    "project": "sums",
                    "run": "first",
                    "url": "https://mlflow.example.org",
                    "folder": "runs",
                    "keySecret": {"name": "mlflow", "key": "token"},
                }
            ],
            "spec.trackingTemplate": _TEMPLATE,
            "spec.resumeFrom": {"job": "earlier", "step": "Best", "optimizer": True},
            "spec.streams": {
                "replicas": 3,
                "placement": {"cluster": "west", "tags": ["ssd"]},
                "maxBytes": 1 << 31,
                "maxMessages": 100_000,
            },
            "spec.evaluation": {
                "everySteps": 10,
                "atStart": False,
                "keepBest": False,
                "benchmarks": [{"name": "gsm8k", "jsonl": {"uri": "gsm8k.jsonl"}, **_BENCHMARK}],
            },
            "spec.targetReward": -0.5,
            "spec.suspend": True,
            "spec.ttlSecondsAfterFinished": 3600,
            "spec.managedBy": "kueue.x-k8s.io/multikueue",
            "spec.failurePolicy": {
                "maxRestarts": 3,
                "backoffSeconds": 1,
                "maxBackoffSeconds": 30,
                "failedGroups": 4,
                "onExit": [{"exitCodes": [3, 137], "action": "RestartFree"}],
            },
        },
    )


def complete_pool() -> Manifest:
    return changed(pool(), {"spec": {"jobRef": {"name": "arithmetic"}, "suspend": True, **_POOL}})


def complete_trainer() -> Manifest:
    spec = {"jobRef": {"name": "arithmetic"}, "policy": "solver", "model": _MODEL, "algorithm": _ALGORITHM}
    return changed(trainer(), {"spec": {**spec, "suspend": True, **_TRAINER}})


def variants() -> list[Manifest]:
    """Valid manifests for the alternatives that one object cannot hold together."""
    return [
        changed(
            job("curriculum"), {"spec.data.curator.curriculum": {"start": 0.1, "steps": 10, "difficultyColumn": "d"}}
        ),
        changed(job("own-curator"), {"spec.data.curator.custom": _PLUGIN, "spec.workflow.source.path": "code"}),
        staged_job(),
        changed(
            staged_job("two-models"),
            {
                "spec.policies.0.algorithm": {"name": "ppo", "critic": _CRITIC, "kl": _STAGED_KL},
                "spec.policies.1.algorithm": {"name": "critic", "critic": _CRITIC},
                "spec.stages.1.rows": ["solver"],
            },
        ),
        changed(job("own-selection"), {"spec.data.selection": _PLUGIN}),
        changed(job("by-reward"), {"spec.maxSteps": REMOVED, "spec.targetReward": 1}),
        changed(
            job("from-a-place"),
            {"spec.resumeFrom": {"checkpoint": "s3://kept/ns/j", "publicKey": f"{'A' * 43}=", "step": 40}},
        ),
        changed(job("by-epochs"), {"spec.data.epochs": 1, "spec.data.groupSize": 1}),
        changed(
            pool("elsewhere"), {"spec.engine": {"name": "sglang", "url": "http://sglang:8000", "apiKeySecret": _SECRET}}
        ),
        changed(pool("empty"), {"spec.replicas": 0}),
        changed(trainer("ppo"), {"spec.algorithm": {"name": "ppo", "clip": {}}}),
        *(changed(trainer(f"own-{number}"), {"spec.algorithm": one}) for number, one in enumerate(_WITH_COLUMNS)),
    ]
