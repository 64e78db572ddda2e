"""No route into the log shows a secret, and what comes out is one JSON object, or one readable line, per event."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
import structlog
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from trimtab.fabric import logs
from trimtab.fabric.redaction import Redactor, names_a_secret
from trimtab.fabric.settings import LogSettings

PLAIN = "hunter2-and-more"
AWKWARD = "p@ss\"w'ord\\ \t/ünï"
MULTILINE = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n-----END KEY-----\n"
SECRETS = (PLAIN, AWKWARD, MULTILINE)


@pytest.fixture
def redactor() -> Redactor:
    """Of a test's own: what it registers is nobody else's secret."""
    return Redactor()


@pytest.fixture
def log(redactor: Redactor) -> Iterator[io.StringIO]:
    """A process whose logs go to a buffer, put back afterwards."""
    root = logging.getLogger()
    before = (root.level, sys.excepthook, threading.excepthook)
    stream = io.StringIO()
    logs.configure_logs(
        LogSettings(level="debug", format="json"), stream=stream, secrets=SECRETS, redactor=redactor, pod="worker-0"
    )
    yield stream
    root.level, sys.excepthook, threading.excepthook = before
    root.handlers[:] = [handler for handler in root.handlers if getattr(handler, "stream", None) is not stream]
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def _assert_clean(text: str) -> None:
    for secret in (PLAIN, AWKWARD, "MIIEvQIBADANBgkqhkiG9w0B"):
        for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, safe="")):
            assert form not in text


def _raise(secret: str) -> None:
    try:
        dict[str, str]()[secret]
    except KeyError as inner:
        raise ConnectionError(f"cannot reach nats://user:{secret}@host, tried {secret!r}") from inner


class _Shows:
    def __init__(self, secret: str) -> None:
        self.secret = secret

    def __repr__(self) -> str:
        return f"<Shows {self.secret!r}>"


class _Model(BaseModel):
    password: SecretStr
    note: str


def _exception(secret: str) -> None:
    try:
        _raise(secret)
    except ConnectionError:
        structlog.get_logger("a").exception("failed", secret_value=secret)


def _stdlib_exception(secret: str) -> None:
    try:
        _raise(secret)
    except ConnectionError:
        logging.getLogger("b").exception("failed with %s", secret)


def _deep(secret: str) -> Any:
    value: Any = secret
    for _ in range(40):
        value = {"x": [value]}
    return value


def _cycle(secret: str) -> None:
    value: dict[str, Any] = {"a": secret}
    value["self"] = value
    structlog.get_logger().info("cycle", value=value)


def _uncaught(secret: str) -> None:
    try:
        _raise(secret)
    except ConnectionError as error:
        sys.excepthook(type(error), error, error.__traceback__)


def _uncaught_in_thread(secret: str) -> None:
    thread = threading.Thread(target=_raise, args=(secret,))
    thread.start()
    thread.join(10)


def _asyncio_task(secret: str) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_exception_handler({"message": f"lost {secret}", "exception": OSError(secret)})

    asyncio.run(main())


def _bound(secret: str) -> None:
    with structlog.contextvars.bound_contextvars(context=secret):
        structlog.get_logger().bind(bound=secret).info("bound")


def _warning(secret: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(f"careful with {secret}", stacklevel=1)


ROUTES: dict[str, Callable[[str], object]] = {
    "event": lambda secret: structlog.get_logger().info(f"token is {secret}."),
    "keyword": lambda secret: structlog.get_logger().info("x", value=secret),
    "key": lambda secret: structlog.get_logger().info("x", **{f"k {secret}": 1}),
    "positional": lambda secret: structlog.get_logger().info("x %s", secret),
    "nested": lambda secret: structlog.get_logger().info("x", value={"a": [1, ({"b": secret}, {secret: 1})]}),
    "set": lambda secret: structlog.get_logger().info("x", value={secret}),
    "deep": lambda secret: structlog.get_logger().info("x", value=_deep(secret)),
    "cycle": _cycle,
    "bytes": lambda secret: structlog.get_logger().info("x", value=secret.encode()),
    "object": lambda secret: structlog.get_logger().info("x", value=_Shows(secret)),
    "model": lambda secret: structlog.get_logger().info("x", value=_Model(password=SecretStr(secret), note=secret)),
    "secret string": lambda secret: structlog.get_logger().info("x", value=SecretStr(secret)),
    "exception value": lambda secret: structlog.get_logger().info("x", error=ValueError(secret)),
    "exception": _exception,
    "quoted": lambda secret: structlog.get_logger().info(f"https://host/?key={quote(secret, safe='')}"),
    "as json": lambda secret: structlog.get_logger().info(json.dumps({"note": secret})),
    "bound": _bound,
    "stdlib message": lambda secret: logging.getLogger("b").warning("it is " + secret),  # noqa: G003
    "stdlib arguments": lambda secret: logging.getLogger("b").warning("%s and %r", secret, {"a": secret}),
    "stdlib extra": lambda secret: logging.getLogger("b").warning("x", extra={"more": {"a": secret}}),
    "stdlib exception": _stdlib_exception,
    "stdlib bad format": lambda secret: logging.getLogger("b").warning("%d", secret),
    "stdlib logger name": lambda secret: logging.getLogger(secret).warning("x"),
    "warning": _warning,
    "uncaught": _uncaught,
    "uncaught in a thread": _uncaught_in_thread,
    "asyncio": _asyncio_task,
}


@pytest.mark.parametrize("secret", SECRETS, ids=["plain", "awkward", "multiline"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_registered_secret_never_comes_out(
    log: io.StringIO, redactor: Redactor, capfd: pytest.CaptureFixture[str], route: str, secret: str
) -> None:
    # Again, because pytest has put its own handlers, which do not redact, beside ours since.
    logs.configure_logs(
        LogSettings(level="debug", format="json"), stream=log, secrets=SECRETS, redactor=redactor, pod="worker-0"
    )
    ROUTES[route](secret)
    text = log.getvalue()
    assert text
    _assert_clean(text)
    captured = capfd.readouterr()
    _assert_clean(captured.out + captured.err)
    if route != "stdlib bad format":
        for line in text.splitlines():
            assert json.loads(line)["pod"] == "worker-0"


@pytest.mark.parametrize("secret", SECRETS, ids=["plain", "awkward", "multiline"])
@pytest.mark.parametrize("route", ROUTES)
def test_nor_on_the_console(log: io.StringIO, redactor: Redactor, route: str, secret: str) -> None:
    settings = LogSettings(level="debug", format="console")
    logs.configure_logs(settings, stream=log, secrets=SECRETS, redactor=redactor)
    ROUTES[route](secret)
    assert log.getvalue()
    _assert_clean(log.getvalue())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://user:never-told@host:4222/x", "nats://***@host:4222/x"),
        ("s3+http://a%40b:c@d@host", "s3+http://***@host"),
        ("see https://example.org/a@b", "see https://example.org/a@b"),
        ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer ***"),
        ("password=never-told user=me", "password=*** user=me"),
        ("'secret_access_key': 'never-told', 'x': 1", "'secret_access_key': '***', 'x': 1"),
        ("512 tokens, token_count=512", "512 tokens, token_count=512"),
    ],
)
def test_credentials_in_text_are_recognised_without_being_registered(text: str, shown: str) -> None:
    assert Redactor().text(text) == shown


@pytest.mark.parametrize("text", ["a-", "a://", "a:b@", "basic ", "secret:", "password = ", "'", " ", "_", "api-"])
def test_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    redactor = Redactor()
    started = time.process_time()
    redactor.text(text * 20_000 + "://=: ")
    assert time.process_time() - started < 2.0  # quadratic would be minutes


GIVEN_AWAY = (
    *("password", "db_password", "PASSWORD", "passwordHash", "token", "authToken", "api_key", "apiKey", "API-KEY"),
    *("apikey", "secret", "client_secret", "secret_access_key", "access_key_id", "Authorization", "credentials"),
    *("privateKey", "NATS_PASSWORD", "session-token"),
)


@pytest.mark.parametrize("name", GIVEN_AWAY)
def test_names_that_give_a_secret_away(name: str) -> None:
    assert names_a_secret(name)
    assert Redactor().mapping({name: "never-told", "x": {name: ["never-told"]}}) == {name: "***", "x": {name: "***"}}


@pytest.mark.parametrize(
    "name", ["tokens", "token_count", "max_tokens", "token_ids", "secret_name", "key", "credentials_file", "event", ""]
)
def test_names_that_do_not(name: str) -> None:
    assert not names_a_secret(name)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text(min_size=6), st.text(), st.text())
def test_any_registered_secret_is_taken_out_of_any_structure(secret: str, before: str, after: str) -> None:
    assume(not set(secret) <= set("*"))
    redactor = Redactor()
    redactor.register([secret])
    text = before + secret + after
    shown = redactor.mapping(
        {"a": text, text: 1, "b": [{"c": (text,)}], "d": text.encode("utf-8", "replace"), "e": {text}}
    )
    plain = str(shown["a"]) + "".join(shown) + str(shown["b"][0]["c"][0]) + shown["d"] + shown["e"][0]
    assert secret not in plain


def test_an_event_is_one_json_object_with_time_level_logger_and_fields(log: io.StringIO) -> None:
    logger = structlog.get_logger("trimtab.rollout")
    logger.info("task pulled", task="t-1", attempt=2, ratio=0.5, none=None, pods=("a", "b"))
    event = json.loads(log.getvalue())
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "task pulled",
        "level": "info",
        "logger": "trimtab.rollout",
        "pod": "worker-0",
        "task": "t-1",
        "attempt": 2,
        "ratio": 0.5,
        "none": None,
        "pods": ["a", "b"],
    }


def test_an_exception_is_logged_with_its_traceback(log: io.StringIO) -> None:
    _exception("nothing special")
    event = json.loads(log.getvalue())
    assert "ConnectionError: cannot reach" in event["exception"]
    assert "KeyError" in event["exception"]


def test_the_level_filters_structlog_and_the_standard_library(log: io.StringIO) -> None:
    logs.configure_logs(LogSettings(level="warning", format="json"), stream=log)
    structlog.get_logger().info("quiet")
    logging.getLogger("b").info("quiet")
    assert log.getvalue() == ""
    structlog.get_logger().warning("loud")
    logging.getLogger("b").warning("loud")
    assert len(log.getvalue().splitlines()) == 2


def test_a_stream_that_is_no_terminal_gets_json(log: io.StringIO) -> None:
    logs.configure_logs(LogSettings(), stream=log)
    structlog.get_logger().info("x")
    assert json.loads(log.getvalue())["event"] == "x"


def test_a_secret_learned_later_is_redacted_from_then_on(log: io.StringIO, redactor: Redactor) -> None:
    redactor.register(["learned-later"])
    structlog.get_logger().info("got learned-later")
    assert json.loads(log.getvalue())["event"] == "got ***"


def test_a_line_for_which_the_disk_has_no_room_ends_nothing(redactor: Redactor, log: io.StringIO) -> None:
    """/dev/full takes what is buffered, and refuses to write it."""
    lived_on = False
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    with contextlib.suppress(OSError), open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123 - a device
        handler.stream = full
        structlog.get_logger("test").error("lost", size="x" * 100_000)
        structlog.get_logger("test").error("lost")
        handler.stream = log
        lived_on = True
    assert lived_on
    structlog.get_logger("test").error("kept")
    assert "kept" in log.getvalue()
