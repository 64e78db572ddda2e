"""Declaring streams, buckets and consumers: what is missing is made, what differs is updated where the server can, and
what cannot be changed in place is reported by field instead of being worked around.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound, BusRefused, TopologyMismatch
from trimtab.fabric.bus.jetstream_api import Json, api_call
from trimtab.fabric.bus.retry import RETRY_BACKOFF
from trimtab.fabric.bus.topology import BucketSpec, ConsumerSpec, JobTopology, StreamSpec

STREAM_FIXED = frozenset({"name", "retention", "storage", "deny_delete"})
CONSUMER_FIXED = frozenset({"name", "durable_name", "deliver_policy", "ack_policy"})

_RAISABLE = ("num_replicas", "max_bytes", "max_msgs", "placement")
_DECLARED_KEY = "trimtab.declared"
_ANSWER_S = 10.0
"""The least that a question whether something is there has: the answer says more than that none came."""
_STREAM_EXISTS = 10058
_CONSUMER_EXISTS = frozenset({10013, 10105, 10148})


def differing_fields(wanted: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Fields where the server has something else. It leaves out what is false or empty, so absent equals falsy."""
    return [name for name, value in wanted.items() if (present.get(name) or None) != (value or None)]


def reconciled(kind: str, wanted: Json, present: Json, *, fixed: frozenset[str]) -> Json | None:
    """The configuration to update to, None when nothing differs; TopologyMismatch when a fixed field does."""
    differing = differing_fields(wanted, present)
    if not differing:
        return None
    for name in differing:
        if name in fixed:
            raise TopologyMismatch(
                f"{kind} {wanted['name']!r} exists with {name}={present.get(name)!r}, wanted {wanted[name]!r}, "
                f"which cannot be changed in place; delete it or use another name",
                field=name,
            )
    return {**present, **wanted}


def with_raised_values(wanted: Json, present: Json) -> Json:
    """What to declare, beside what an administrator has made more of by hand. A note on the stream says what was
    declared last: where the server has something else, somebody else has set it. That stays, if it is more."""
    metadata: dict[str, str] = dict(present.get("metadata") or {})
    try:
        declared: Json = json.loads(metadata.get(_DECLARED_KEY, "{}"))
    except ValueError:
        declared = {}
    kept = dict(wanted)
    for name in _RAISABLE:
        own = name in declared and differing_fields({name: declared[name]}, present) == []
        if name in wanted and not own and _is_more(name, present.get(name), than=wanted[name]):
            kept[name] = present[name]
    return {**kept, "metadata": {**metadata, _DECLARED_KEY: _declared(wanted)}}


def _declared(wanted: Json) -> str:
    return json.dumps({name: wanted[name] for name in _RAISABLE if name in wanted}, sort_keys=True)


def _is_more(name: str, present: Any, *, than: Any) -> bool:
    if name == "placement":
        return bool(present)
    if name == "num_replicas":
        return int(present or 1) > int(than)
    # Below 1 there is no limit.
    unlimited = math.inf
    return (present if present and present > 0 else unlimited) > (than if than and than > 0 else unlimited)


async def declare_stream(
    bus: Bus, spec: StreamSpec | BucketSpec, *, deadline_s: float, may_change: bool = True
) -> None:
    """Makes the stream, or brings it up to date. A user that may not waits until it is there. Whoever does not know how
    large streams may be leaves one that is there as it is, by `may_change`."""
    wanted = spec.config()
    wanted["metadata"] = {_DECLARED_KEY: _declared(wanted)}
    name = wanted["name"]
    if not bus.makes_streams:
        await _await_existence(bus, f"STREAM.INFO.{name}", deadline_s=deadline_s)
        return
    try:
        info = await api_call(bus, f"STREAM.INFO.{name}", deadline_s=deadline_s)
    except BusNotFound:
        try:
            made = await api_call(bus, f"STREAM.CREATE.{name}", wanted, deadline_s=deadline_s)
        except BusRefused as refused:
            # Someone else declared it between our two requests.
            if refused.err_code != _STREAM_EXISTS:
                raise
        else:
            _check_placed(spec, made)
            return
        info = await api_call(bus, f"STREAM.INFO.{name}", deadline_s=deadline_s)
    present = info["config"]
    wanted = with_raised_values(spec.config(), present)
    update = reconciled("stream", wanted, present, fixed=STREAM_FIXED)
    if not may_change:
        return
    _check_placed(spec, info)
    if update is None:
        return
    try:
        await api_call(bus, f"STREAM.UPDATE.{name}", update, deadline_s=deadline_s)
    except BusRefused as refused:
        field = differing_fields(wanted, present)[0]
        raise TopologyMismatch(f"stream {name!r} cannot be updated ({field}): {refused}", field=field) from refused


def _check_placed(spec: StreamSpec | BucketSpec, info: Json) -> None:
    """A server that is no cluster says nothing about a placement, and does nothing about it."""
    if spec.placement.config() is not None and not (info.get("cluster") or {}).get("name"):
        raise TopologyMismatch(
            f"stream {info['config']['name']!r} is on a NATS server that is no cluster, which places nothing",
            field="placement",
        )


async def _await_existence(bus: Bus, question: str, *, deadline_s: float) -> None:
    clock = asyncio.get_running_loop().time
    end = clock() + deadline_s
    attempt = 0
    while True:
        try:
            await api_call(bus, question, deadline_s=max(_ANSWER_S, end - clock()))
        except BusNotFound:
            delay = RETRY_BACKOFF.delay_s(attempt)
            attempt += 1
            if clock() + delay >= end:
                raise BusNotFound(
                    f"{question}: not there, and this user may not make it; the operator does that, and needs to"
                    " reach NATS"
                ) from None
            await asyncio.sleep(delay)
        else:
            return


async def declare_consumer(bus: Bus, spec: ConsumerSpec, *, deadline_s: float) -> None:
    """Makes the consumer, or brings it up to date. A user that may not waits until it is there."""
    wanted = spec.config()
    if not bus.makes_streams:
        await _await_existence(bus, f"CONSUMER.INFO.{spec.stream}.{spec.name}", deadline_s=deadline_s)
        return
    try:
        info = await api_call(bus, f"CONSUMER.INFO.{spec.stream}.{spec.name}", deadline_s=deadline_s)
    except BusNotFound:
        try:
            await _write_consumer(bus, spec, wanted, action="create", deadline_s=deadline_s)
        except BusRefused as refused:
            if refused.err_code not in _CONSUMER_EXISTS:
                raise
        else:
            return
        info = await api_call(bus, f"CONSUMER.INFO.{spec.stream}.{spec.name}", deadline_s=deadline_s)
    present = info["config"]
    update = reconciled("consumer", wanted, present, fixed=CONSUMER_FIXED)
    if update is None:
        return
    for one_of in ("filter_subject", "filter_subjects"):
        if one_of not in wanted:
            update.pop(one_of, None)
    try:
        await _write_consumer(bus, spec, update, action="update", deadline_s=deadline_s)
    except BusRefused as refused:
        field = differing_fields(wanted, present)[0]
        raise TopologyMismatch(
            f"consumer {spec.name!r} cannot be updated ({field}): {refused}", field=field
        ) from refused


async def _write_consumer(bus: Bus, spec: ConsumerSpec, config: Json, *, action: str, deadline_s: float) -> None:
    operation = f"CONSUMER.CREATE.{spec.stream}.{spec.name}"
    if "filter_subject" in config:
        operation = f"{operation}.{config['filter_subject']}"
    body = {"stream_name": spec.stream, "config": config, "action": action}
    await api_call(bus, operation, body, deadline_s=deadline_s)


async def declare_job(bus: Bus, topology: JobTopology, *, deadline_s: float, may_change: bool = True) -> None:
    """Every stream and bucket of the job; consumers belong to their readers."""
    specs: tuple[StreamSpec | BucketSpec, ...] = (*topology.streams, *topology.buckets)
    for spec in specs:
        await declare_stream(bus, spec, deadline_s=deadline_s, may_change=may_change)


async def delete_stream(bus: Bus, name: str, *, deadline_s: float) -> bool:
    """False when there was none."""
    try:
        await api_call(bus, f"STREAM.DELETE.{name}", deadline_s=deadline_s)
    except BusNotFound:
        return False
    return True


async def delete_message(bus: Bus, stream: str, sequence: int, *, deadline_s: float) -> None:
    body = {"seq": sequence, "no_erase": True}
    await api_call(bus, f"STREAM.MSG.DELETE.{stream}", body, deadline_s=deadline_s)
