"""Why a cluster is not at our disposal: a word for programs and a sentence for people, the same for as long as the
trouble is the same, so that it is written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.kube.errors import ApiError, Forbidden, KubeError, Unauthorized
from trimtab.operator.plan.reachability import UNREACHABLE

UNAUTHORIZED = "Unauthorized"
FORBIDDEN = "Forbidden"
NO_KUBECONFIG = "KubeConfigMissing"
_TLS = ("TLS failed", "ClientConnectorCertificateError", "ClientConnectorSSLError")


@dataclass(frozen=True, kw_only=True)
class Outage:
    reason: str
    message: str


def outage_by(error: KubeError | TimeoutError, *, namespace: str) -> Outage:
    match error:
        case Unauthorized():
            return Outage(
                reason=UNAUTHORIZED,
                message="the cluster does not accept the kubeconfig's token or certificate: put a valid one into the "
                "Secret",
            )
        case Forbidden():
            return Outage(
                reason=FORBIDDEN,
                message=f"the kubeconfig's account may not do what is needed in namespace {namespace} there: apply "
                "rbac/remote.yaml there",
            )
        case ApiError():
            return Outage(reason=UNREACHABLE, message=f"the cluster's API server answers {error.code}")
    if any(word in str(error) for word in _TLS):
        return Outage(
            reason=UNREACHABLE,
            message="the cluster's API server does not prove who it is: certificate-authority-data is another's, or "
            "its certificate has expired or is for another address",
        )
    return Outage(reason=UNREACHABLE, message="the cluster's API server does not answer")
