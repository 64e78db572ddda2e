"""Episodes as traces of OpenTelemetry, sent to a collector by OTLP over HTTP. An episode that is sent twice is the same
trace again: its ids follow from its own.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import click

from trimtab.cli.slowness.samples import QUEUE, READY, SampleTime

_LIBRARIES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
_AT_ONCE = 512
_TIMEOUT_S = 30
_NANO = 1_000_000_000

otlp_option = click.option(
    "--otlp",
    metavar="URL",
    help="Also send the episodes as traces to this OTLP/HTTP collector, such as http://localhost:4318.",
)


def sent(samples: Iterable[SampleTime], *, job: str, namespace: str, to: str) -> int:
    """How many episodes. Ends the command where the libraries are missing, or the collector does not take them."""
    if not to.startswith(("http://", "https://")):
        raise click.UsageError(f"--otlp {to}: a URL of an OTLP/HTTP collector is needed, such as http://localhost:4318")
    try:
        trace = importlib.import_module("opentelemetry.sdk.trace")
        resources = importlib.import_module("opentelemetry.sdk.resources")
        memory = importlib.import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        processors = importlib.import_module("opentelemetry.sdk.trace.export")
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        api = importlib.import_module("opentelemetry.trace")
    except ImportError as error:
        raise click.ClickException(f"--otlp: {error}; pip install {_LIBRARIES}") from None
    ids, spans = _Ids(), memory.InMemorySpanExporter()
    resource = {"service.name": "trimtab", "trimtab.job": job, "trimtab.namespace": namespace}
    provider = trace.TracerProvider(resource=resources.Resource.create(resource), id_generator=ids)
    provider.add_span_processor(processors.SimpleSpanProcessor(spans))
    tracer, count = provider.get_tracer("trimtab"), 0
    for sample in samples:
        ids.of(sample)
        _record(tracer, api, sample)
        count += 1
    exporter = otlp.OTLPSpanExporter(endpoint=f"{to.rstrip('/')}/v1/traces", timeout=_TIMEOUT_S)
    finished = spans.get_finished_spans()
    for start in range(0, len(finished), _AT_ONCE):
        try:
            taken = exporter.export(finished[start : start + _AT_ONCE]) is processors.SpanExportResult.SUCCESS
        except OSError:
            taken = False
        if not taken:
            raise click.ClickException(f"--otlp {to}: the collector did not take the traces; does it speak OTLP/HTTP?")
    exporter.shutdown()
    return count


def _record(tracer: Any, api: Any, sample: SampleTime) -> None:
    row = sample.row
    begins = row.started_at if row.queued_at is None else min(row.queued_at, row.started_at)
    ends = row.finished_at + (sample.waits_s or 0.0)
    attributes = {
        "trimtab.policy": row.policy,
        "trimtab.role": row.role,
        "trimtab.prompt": row.prompt_id,
        "trimtab.trajectory": row.trajectory_id,
        "trimtab.worker": row.worker,
        "trimtab.tokens": len(row.token_ids),
        "trimtab.trained_tokens": row.trained_tokens,
    }
    whole = tracer.start_span("sample", start_time=_nanoseconds(begins), attributes=attributes)
    context = api.set_span_in_context(whole)
    for name, start, end in _children(sample, begins=begins, ends=ends):
        child = tracer.start_span(name, context=context, start_time=_nanoseconds(start))
        child.end(end_time=_nanoseconds(end))
    whole.end(end_time=_nanoseconds(ends))


def _children(sample: SampleTime, *, begins: float, ends: float) -> Iterator[tuple[str, float, float]]:
    row = sample.row
    if begins < row.started_at:
        yield QUEUE, begins, row.started_at
    for phase in row.phases:
        yield phase.name, row.started_at + phase.after, row.started_at + phase.after + phase.seconds
    if ends > row.finished_at:
        yield READY, row.finished_at, ends


def _nanoseconds(at: float) -> int:
    return round(at * _NANO)


class _Ids:
    """As the SDK asks for ids."""

    def __init__(self) -> None:
        self._seed = b""
        self._spans = 0

    def of(self, sample: SampleTime) -> None:
        self._seed = sample.row.message_id.encode()
        self._spans = 0

    def generate_trace_id(self) -> int:
        return self._hashed(b"trace", 16)

    def generate_span_id(self) -> int:
        self._spans += 1
        return self._hashed(str(self._spans).encode(), 8)

    def is_trace_id_random(self) -> bool:
        return False

    def _hashed(self, what: bytes, size: int) -> int:
        return int.from_bytes(hashlib.blake2b(what + b"/" + self._seed, digest_size=size).digest(), "big")
