"""Declaring streams, buckets and consumers: what is missing is made, what differs is updated where the server can, and
what cannot be changed in place is reported by field instead of being worked around.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound, BusRefused, TopologyMismatch
from trimtab.fabric.bus.jetstream_api import Json, api_call
from trimtab.fabric.bus.retry import RETRY_BACKOFF
from trimtab.fabric.bus.topology import BucketSpec, ConsumerSpec, JobTopology, StreamSpec

STREAM_FIXED = frozenset({"name", "retention", "storage", "deny_delete"})
CONSUMER_FIXED = frozenset({"name", "durable_name", "deliver_policy", "ack_policy"})

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


async def declare_stream(bus: Bus, spec: StreamSpec | BucketSpec, *, deadline_s: float) -> None:
    """Makes the stream, or brings it up to date. A user that may not waits until it is there."""
    wanted = spec.config()
    name = wanted["name"]
    if not bus.makes_streams:
        await _await_existence(bus, f"STREAM.INFO.{name}", deadline_s=deadline_s)
        return
    try:
        present = (await api_call(bus, f"STREAM.INFO.{name}", deadline_s=deadline_s))["config"]
    except BusNotFound:
        try:
            await api_call(bus, f"STREAM.CREATE.{name}", wanted, deadline_s=deadline_s)
        except BusRefused as refused:
            # Someone else declared it between our two requests.
            if refused.err_code != _STREAM_EXISTS:
                raise
        else:
            return
        present = (await api_call(bus, f"STREAM.INFO.{name}", deadline_s=deadline_s))["config"]
    update = reconciled("stream", wanted, present, fixed=STREAM_FIXED)
    if update is None:
        return
    try:
        await api_call(bus, f"STREAM.UPDATE.{name}", update, deadline_s=deadline_s)
    except BusRefused as refused:
        field = differing_fields(wanted, present)[0]
        raise TopologyMismatch(f"stream {name!r} cannot be updated ({field}): {refused}", field=field) from refused


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


async def declare_job(bus: Bus, topology: JobTopology, *, deadline_s: float) -> None:
    """Every stream and bucket of the job; consumers belong to their readers."""
    specs: tuple[StreamSpec | BucketSpec, ...] = (*topology.streams, *topology.buckets)
    for spec in specs:
        await declare_stream(bus, spec, deadline_s=deadline_s)


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
