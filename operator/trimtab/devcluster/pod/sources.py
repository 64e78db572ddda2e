"""Reads from the API server what a pod refers to: ConfigMaps, Secrets and tokens of its service account."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from trimtab.devcluster.container.environment import Source, Sources, content_of
from trimtab.devcluster.volumes.projections import TokenWish
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Object

_RENEW_AFTER = 0.8


@dataclass(frozen=True, kw_only=True)
class _Token:
    value: str
    renew_at: float


@dataclass(kw_only=True)
class PodSources:
    client: KubeClient
    pod: Object
    clock: Callable[[], float] = time.monotonic
    _tokens: dict[TokenWish, _Token] = field(default_factory=dict)

    async def read(self, wanted: Iterable[Source]) -> Sources:
        """What is there of them; a source that is missing is simply not in the answer."""
        namespace = self.pod["metadata"]["namespace"]
        content = {}
        for source in wanted:
            resource = CONFIG_MAPS if source.kind == "ConfigMap" else SECRETS
            item = await self.client.get_or_none(resource, source.name, namespace=namespace)
            if item is not None:
                content[source] = content_of(source.kind, item)
        return Sources(content=content)

    async def tokens(self, wanted: Iterable[TokenWish]) -> dict[TokenWish, str]:
        """Bound to the pod, so that they are void when it is gone; renewed well before they expire."""
        return {wish: await self._token(wish) for wish in wanted}

    async def _token(self, wish: TokenWish) -> str:
        known = self._tokens.get(wish)
        if known is not None and self.clock() < known.renew_at:
            return known.value
        metadata = self.pod["metadata"]
        reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        spec = {"expirationSeconds": wish.lifetime_s, "boundObjectRef": reference}
        if wish.audience:
            spec["audiences"] = [wish.audience]
        answer = await self.client.create(
            SERVICE_ACCOUNTS,
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
            namespace=metadata["namespace"],
            name=self.pod["spec"].get("serviceAccountName") or "default",
            subresource="token",
        )
        lifetime_s = float(answer["spec"]["expirationSeconds"])
        token = _Token(value=answer["status"]["token"], renew_at=self.clock() + lifetime_s * _RENEW_AFTER)
        self._tokens[wish] = token
        return token.value
