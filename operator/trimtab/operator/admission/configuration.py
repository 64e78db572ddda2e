"""What the API server is told to ask us about. The chart's template says the same, and a test compares them."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.kube.resources import RLJOBS, ROLLOUT_POOLS, TRAINERS, VALIDATING_WEBHOOKS, Object

NAME = "admission.rl.trimtab.dev"
REVIEW = "review"
"""kopf runs the handlers whose id is the path of the request."""
TIMEOUT_S = 5


def webhook_configuration(
    name: str, *, client_config: dict[str, object], namespaces: Sequence[str] = (), operator: str | None = None
) -> Object:
    """`operator` is its user name: it is not asked about what it writes itself."""
    hook: Object = {
        "name": NAME,
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_S,
        "clientConfig": client_config,
        "rules": [
            {
                "apiGroups": [RLJOBS.group],
                "apiVersions": [RLJOBS.version],
                "operations": ["CREATE", "UPDATE"],
                "resources": [RLJOBS.plural, ROLLOUT_POOLS.plural, f"{ROLLOUT_POOLS.plural}/scale", TRAINERS.plural],
                "scope": "Namespaced",
            }
        ],
    }
    if namespaces:
        label = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
        hook["namespaceSelector"] = {"matchExpressions": [label]}
    if operator is not None:
        expression = f'request.userInfo.username != "{operator}"'
        hook["matchConditions"] = [{"name": "not-the-operator", "expression": expression}]
    return {
        "apiVersion": VALIDATING_WEBHOOKS.api_version,
        "kind": VALIDATING_WEBHOOKS.kind,
        "metadata": {"name": name},
        "webhooks": [hook],
    }
