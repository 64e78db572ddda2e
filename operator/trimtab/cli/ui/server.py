"""The server behind the page: static files, a stream of events, and answers about samples. It changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import structlog
from aiohttp import web

from trimtab.cli.job_account import JobUnknown
from trimtab.cli.samples.choice import NothingChosen, Order, Wanted
from trimtab.cli.ui.book import Book, Source
from trimtab.cli.ui.guard import HEADERS, Guard, guarding
from trimtab.cli.ui.lookup import Lookup
from trimtab.cli.ui.static_files import INDEX, StaticFile, static_files
from trimtab.cli.ui.stream import BadRequest, readers, stream
from trimtab.embedded.binaries import BinaryMissingError
from trimtab.embedded.server import ServerStartError
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.settings import SettingsError

_log = structlog.get_logger(__name__)
_STREAMS = 64
"""Pages that are open at once."""
_QUESTIONS = 8
_QUESTION_S = 120.0
_MOST_SAMPLES = 500
_SAMPLES = 100
_LOOK_S = 0.25
_UNANSWERED = (
    BusError,
    SettingsError,
    JobUnknown,
    ServerStartError,
    BinaryMissingError,
    ObjectStoreError,
    NothingChosen,
    OSError,
)
_JSON = "application/json"

Answer = TypeVar("Answer")


class Server:
    """`sources` fill the book while it runs."""

    def __init__(self, sources: list[Source], guard: Guard, *, tokenizer: Path | None) -> None:
        self._book = Book()
        self._sources = sources
        self._tokenizer = tokenizer
        self._files = static_files()
        self._ending = asyncio.Event()
        self._streams = 0
        self._questions = 0
        self._lookups: dict[str, Lookup] = {}
        self._one_at_a_time = asyncio.Lock()
        self.app = web.Application(middlewares=[guarding(guard)])
        self.app.router.add_get("/", self._index)
        self.app.router.add_get("/static/{name:.+}", self._static)
        self.app.router.add_get("/api/stream", self._stream)
        self.app.router.add_get("/api/runs/{run}/samples", self._samples)
        self.app.router.add_get("/api/runs/{run}/samples/{sequence}", self._sample)
        self.app.router.add_get("/api/runs/{run}/given-up", self._given_up)
        self.app.cleanup_ctx.append(self._kept)
        self.app.on_shutdown.append(self._end)

    @property
    def trouble(self) -> str:
        """Why runs are missing, or may be behind."""
        return self._book.trouble

    async def _kept(self, _: web.Application) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(source.keep(self._book)) for source in self._sources]
        tasks.append(asyncio.create_task(self._follow()))
        for task in tasks:
            task.add_done_callback(self._complain)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._book.close(), return_exceptions=True)

    def _complain(self, task: asyncio.Task[None]) -> None:
        """Nothing ends them but the server's own end; a page that is behind must not look as if it were not."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("runs_not_followed", exc_info=error)
            self._book.say("", f"runs are not followed any more: {type(error).__name__}; start trimtab ui anew")

    async def _follow(self) -> None:
        while True:
            self._book.follow_watched()
            await asyncio.sleep(_LOOK_S)

    async def _end(self, _: web.Application) -> None:
        self._ending.set()

    async def _index(self, request: web.Request) -> web.Response:
        return self._file(request, self._files[INDEX])

    async def _static(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        return self._file(request, found)

    def _file(self, request: web.Request, file: StaticFile) -> web.Response:
        headers = {"ETag": f'"{file.tag}"', "Cache-Control": "no-cache"}
        if any(tag.value == file.tag for tag in request.if_none_match or ()):
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return web.Response(body=file.content, content_type=file.kind, charset="utf-8", headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        try:
            looked_at = readers(request.query.getall("run", []))
        except BadRequest as error:
            return _refused(HTTPStatus.BAD_REQUEST, str(error))
        if self._streams >= _STREAMS:
            return _refused(HTTPStatus.SERVICE_UNAVAILABLE, f"{_STREAMS} pages are open already")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self._streams += 1
        try:
            await response.prepare(request)
            await stream(response, self._book, looked_at, self._ending)
        except (ConnectionError, TimeoutError) as error:
            _log.debug("page_gone", reason=str(error))
        finally:
            self._streams -= 1
        return response

    async def _samples(self, request: web.Request) -> web.Response:
        query = request.query
        try:
            wanted = Wanted(
                policy=query.get("policy") or None,
                step=_whole(query.get("step")),
                benchmark=query.get("benchmark") or None,
                order=Order(query.get("order", Order.NEWEST)),
            )
            limit = min(_whole(query.get("limit")) or _SAMPLES, _MOST_SAMPLES)
        except ValueError as error:
            return _refused(HTTPStatus.BAD_REQUEST, str(error))
        return await self._answer(request, lambda lookup: lookup.samples(wanted, limit=limit))

    async def _sample(self, request: web.Request) -> web.Response:
        try:
            sequence = _whole(request.match_info["sequence"])
        except ValueError as error:
            return _refused(HTTPStatus.BAD_REQUEST, str(error))
        return await self._answer(request, lambda lookup: lookup.spoken(sequence or 0))

    async def _given_up(self, request: web.Request) -> web.Response:
        return await self._answer(request, lambda lookup: lookup.given_up())

    async def _answer(self, request: web.Request, question: Callable[[Lookup], Answer]) -> web.Response:
        run_id = request.match_info["run"]
        run = self._book.runs.get(run_id)
        if run is None:
            return _refused(HTTPStatus.NOT_FOUND, "there is no such run any more")
        if self._questions >= _QUESTIONS:
            return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "many ask at once; try again")
        self._questions += 1
        try:
            async with asyncio.timeout(_QUESTION_S), self._one_at_a_time:
                key = f"{run_id}:{run.generation}"
                if key not in self._lookups:
                    # Of one run: each keeps the headers of the rows that it read.
                    self._lookups = {key: await asyncio.to_thread(Lookup, run.place, tokenizer=self._tokenizer)}
                answer = await asyncio.to_thread(question, self._lookups[key])
        except click.ClickException as error:
            return _refused(HTTPStatus.CONFLICT, error.message)
        except _UNANSWERED as error:
            return _refused(HTTPStatus.CONFLICT, str(error) or "it took too long")
        finally:
            self._questions -= 1
        return web.Response(body=msgspec.json.encode(answer), content_type=_JSON)


@asynccontextmanager
async def serving(server: Server, *, host: str, port: int) -> AsyncIterator[None]:
    """As long as the block. Raises OSError where the port is taken."""
    runner = web.AppRunner(server.app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()


def _refused(status: HTTPStatus, why: str) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode({"error": why}), content_type=_JSON)


def _whole(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValueError(f"{text[:40]!r} is no number")
    return int(text)
