"""What kopf does for us: it logs in, and serves the webhook that the API server asks about our three kinds.

It watches nothing. A watch of kopf's does not tell of what was deleted while it was down, and a broken answer of the
API server ends it with all the others; trimtab.kube's Reflectors outlive both. docs/operator.md has the figures.
"""

from __future__ import annotations

import contextlib
import datetime
import http
from collections.abc import Callable
from typing import Any

import aiohttp
import kopf
import structlog

from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.kube.access import ClusterAccess
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import RLJOBS, ROLLOUT_POOLS, TRAINERS, Object, Resource
from trimtab.operator.admission.configuration import REVIEW
from trimtab.operator.admission.judgement import Judgement, changes_spec, judge, judge_scale

_LOGIN_LIFETIME = datetime.timedelta(minutes=5)
_LOOKUP_S = 2.0
_log = structlog.get_logger(__name__)


OnReview = Callable[[str, str], None]
"""Told of each answer: the kind, and the result (allowed, warned, refused, faulted)."""


def admission_handlers(access: ClusterAccess, *, on_review: OnReview) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        headers = {} if access.token is None else {"Authorization": f"Bearer {await access.token()}"}
        connector = aiohttp.TCPConnector(ssl=access.tls.context(), limit=0)
        session = aiohttp.ClientSession(connector=connector, headers=headers, proxy=access.proxy)
        # Tokens and authorities in files are renewed there; kopf asks again when this is over.
        expires = datetime.datetime.now(datetime.UTC) + _LOGIN_LIFETIME
        return kopf.AiohttpSession(
            server=access.server, aiohttp_session=session, default_namespace=access.namespace, expiration=expires
        )

    @kopf.on.startup(registry=registry)
    async def open_client(memo: kopf.Memo, **_: Any) -> None:
        memo.opened = contextlib.AsyncExitStack()
        memo.client = await memo.opened.enter_async_context(
            KubeClient(access, user_agent="trimtab-admission", deadline_s=_LOOKUP_S)
        )

    @kopf.on.cleanup(registry=registry)
    async def close_client(memo: kopf.Memo, **_: Any) -> None:
        await memo.opened.aclose()

    for resource in (RLJOBS, ROLLOUT_POOLS, TRAINERS):
        _validate(registry, resource, on_review)
    _warn_of_scale(registry, on_review)
    return registry


def _validate(registry: kopf.OperatorRegistry, resource: Resource, on_review: OnReview) -> None:
    @kopf.on.validate(
        resource.group, resource.version, resource.plural, id=REVIEW, operations=["CREATE", "UPDATE"],
        registry=registry,
    )  # fmt: skip
    async def validate(*, memo: kopf.Memo, warnings: list[str], **given: Any) -> None:
        new, old = dict(given["new"]), None if given["old"] is None else dict(given["old"])
        try:
            judgement = judge(new, old=old, job=await _job_of(memo.client, new) if changes_spec(new, old=old) else None)
        except Exception:  # noqa: BLE001 - a fault of ours keeps no one from writing; the reconciler judges again
            _log.exception("admission_faulted", kind=resource.kind)
            on_review(resource.kind, "faulted")
            return
        on_review(resource.kind, _result(judgement))
        _answer(judgement, warnings)


def _warn_of_scale(registry: kopf.OperatorRegistry, on_review: OnReview) -> None:
    @kopf.on.validate(
        ROLLOUT_POOLS.group, ROLLOUT_POOLS.version, ROLLOUT_POOLS.plural, id=REVIEW, subresource="scale",
        operations=["UPDATE"], registry=registry,
    )  # fmt: skip
    async def scale(*, memo: kopf.Memo, warnings: list[str], **given: Any) -> None:
        metadata, replicas = given["new"]["metadata"], int(given["new"]["spec"].get("replicas") or 0)
        try:
            item = await memo.client.get(ROLLOUT_POOLS, metadata["name"], namespace=metadata["namespace"])
            judgement = judge_scale(RolloutPool.model_validate(item), replicas, job=await _job_of(memo.client, item))
        except (KubeError, ValueError) as error:
            _log.info("scale_not_judged", error=str(error))
            on_review("Scale", "faulted")
            return
        on_review("Scale", _result(judgement))
        _answer(judgement, warnings)


def _result(judgement: Judgement) -> str:
    if judgement.refusal is not None:
        return "refused"
    return "warned" if judgement.warnings else "allowed"


def _answer(judgement: Judgement, warnings: list[str]) -> None:
    warnings.extend(judgement.warnings)
    if judgement.refusal is not None:
        raise kopf.AdmissionError(judgement.refusal, code=http.HTTPStatus.UNPROCESSABLE_ENTITY)


async def _job_of(client: KubeClient, item: Object) -> RLJob | None:
    """Of a pool. What cannot be had is done without: the reconciler judges again."""
    name = ((item.get("spec") or {}).get("jobRef") or {}).get("name")
    if item.get("kind") != ROLLOUT_POOLS.kind or not name:
        return None
    try:
        job = await client.get_or_none(RLJOBS, name, namespace=item["metadata"]["namespace"])
        return None if job is None else RLJob.model_validate(job)
    except (KubeError, ValueError):
        return None
