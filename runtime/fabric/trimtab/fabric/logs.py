"""Structured logs, configured once per process: JSON lines for pods, a console for people, one way out for structlog
and the standard library alike, and redaction as the last step before rendering.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterable, MutableMapping
from types import TracebackType
from typing import Any, TextIO

import structlog

from trimtab.fabric.redaction import Redactor
from trimtab.fabric.settings import LogSettings

REDACTOR = Redactor()
"""The secrets of this process. A secret obtained after start-up is registered here."""


def configure_logs(
    settings: LogSettings,
    *,
    stream: TextIO,
    secrets: Iterable[str] = (),
    redactor: Redactor = REDACTOR,
    **identity: str,
) -> None:
    """Send every log line of the process to the stream, with the pod's identity on it and without the secrets."""
    redactor.register(secrets)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    console = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    render: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=32
        )
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )

    def with_identity(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key, value in identity.items():
            event.setdefault(key, value)
        return event

    def redacted(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return redactor.mapping(event)

    handler = _Handler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *([] if console else [with_identity]),
                structlog.processors.format_exc_info,
                redacted,
                render,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    # Python prints uncaught exceptions as they are, secrets included.
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


class _Handler(logging.StreamHandler[TextIO]):
    """Reports a record that cannot be formatted without printing its arguments, as the standard library would. A line
    for which the disk has no room is lost, and ends nothing.
    """

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is logging's)
        kind = sys.exc_info()[0]
        reason = kind.__name__ if kind else "unknown error"
        with contextlib.suppress(OSError):
            self.stream.write(f"a log line of {record.name} at {record.pathname}:{record.lineno} failed: {reason}\n")


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    structlog.get_logger("uncaught").critical("uncaught exception", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    error = args.exc_value or args.exc_type()
    structlog.get_logger("uncaught").critical(
        "uncaught exception in a thread",
        thread=args.thread.name if args.thread else None,
        exc_info=(args.exc_type, error, args.exc_traceback),
    )
