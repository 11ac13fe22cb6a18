"""The paths of a server, and the status of each failure."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from heed import __version__
from heed.errors import TaskError
from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.serving import _messages
from heed.seq2seq.serving._batcher import Batcher, QueueFullError
from heed.seq2seq.serving._body import read_body
from heed.seq2seq.serving._events import EventStream, Pieces, format_event
from heed.seq2seq.serving._metrics import Metrics, RequestCounter
from heed.seq2seq.serving._page import RunOnPage, make_page
from heed.seq2seq.serving._translations import Mode, Text, Translations
from heed.seq2seq.serving.hosts import HostFilter, Hosts
from heed.seq2seq.translating.translator import Translator

_LOG = logging.getLogger("heed.serving")
_JSON = "application/json"
_FAILURE = "internal error of heed"
_SOON = {"Retry-After": "1"}
_LAST_WORDS = 0.3  # seconds before a server that stops has no time left: streams end with an event
# Failures of `POST /translate` by status.
_REFUSALS = {
    HTTPStatus.BAD_REQUEST: "The body is not JSON",
    HTTPStatus.NOT_FOUND: "No run has that name",
    HTTPStatus.REQUEST_TIMEOUT: "The body did not arrive in time",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The Content-Type is not JSON, or the body is compressed",
    HTTPStatus.UNPROCESSABLE_ENTITY: "A field is wrong, or a text cannot be translated",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many texts wait",
    HTTPStatus.SERVICE_UNAVAILABLE: "The server is stopping",
    HTTPStatus.GATEWAY_TIMEOUT: "The translation was not ready in time",
}


class Service:
    """The served runs, the queue before them, and whether the server takes requests.

    The first run is the default. On its page are examples, or those of its task.
    """

    def __init__(
        self,
        translators: Mapping[str, Translator],
        options: ServingOptions,
        decoding: DecodingOptions | None = None,
        examples: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.options, self.decoding = options, decoding or DecodingOptions()
        self.examples = examples or {}
        self.translations = Translations(translators, options.max_batch)
        self.metrics = Metrics(lambda: len(self.batcher))
        self.batcher: Batcher[Text, _messages.TranslatedText] = Batcher(
            self.translations, self.translations.size, options.max_queue, self.metrics.batch.observe
        )
        self.request_model = _messages.limit_request(options)
        self.open_requests = 0
        self._end: float | None = None

    @property
    def stopping(self) -> bool:
        """Whether the server refuses new requests."""
        return self._end is not None

    def stop(self) -> None:
        """Refuse new requests; those taken already have `drain` seconds from now."""
        if self._end is None:
            self._end = time.monotonic() + self.options.drain

    def seconds_left(self) -> float:
        """Return the seconds left for requests in progress, once the server stops."""
        return max(0.0, (self._end or 0.0) - time.monotonic())

    def warm_up(self) -> None:
        """Compile for usual requests, so that none waits for it."""
        self.translations.warm_up(self.decoding)

    async def translate(self, request: Request) -> Response:
        """Answer a request.

        Raises:
            HTTPException: with the status of the failure.
        """
        if self.stopping:
            raise _stopping_error()
        self.open_requests += 1
        try:
            message = await self._read_request(request)
            if message.stream:
                return await self._stream(message)
            answer = await self._answer(message)
            return Response(answer.model_dump_json(exclude_none=True), media_type=_JSON)
        except asyncio.CancelledError:  # by uvicorn, when a server that stops has no time left
            raise _stopping_error() from None
        finally:
            self.open_requests -= 1

    async def _read_request(self, request: Request) -> _messages.TranslateRequest:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            # Pages of other sites may send forms or plain text without asking the server first, but not JSON.
            raise HTTPException(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the Content-Type must be application/json"
            )
        body = await read_body(request, self.options.max_body, self.options.body_timeout)
        try:
            return _messages.read(self.request_model, body)
        except ValidationError as error:
            bad = _messages.is_json_error(error)
            status = HTTPStatus.BAD_REQUEST if bad else HTTPStatus.UNPROCESSABLE_ENTITY
            raise HTTPException(status, _messages.describe_error(error)) from None

    def _submit(
        self, message: _messages.TranslateRequest, write: Callable[[str], bool] | None = None
    ) -> tuple[str, list[asyncio.Future[_messages.TranslatedText]]]:
        """Put the texts of a request in the queue: the name of its run, and the future translations."""
        run = next(iter(self.translations.translators)) if message.run is None else message.run
        if run not in self.translations.translators:
            known = ", ".join(self.translations.translators)
            raise HTTPException(HTTPStatus.NOT_FOUND, f"no run has that name; served runs: {known}")
        options = self.decoding
        if message.beam_size != options.beam_size:  # checks its values again
            options = dataclasses.replace(options, beam_size=message.beam_size)
        mode = Mode(run, options, message.attention, message.alignment, message.stream)
        texts = [Text(text, message.language, message.n_best, write) for text in message.texts]
        try:
            return run, self.batcher.submit(mode, texts)
        except QueueFullError:
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS, "too many texts wait: try again later", _SOON
            ) from None

    async def _answer(self, message: _messages.TranslateRequest) -> _messages.TranslateAnswer:
        run, waiting = self._submit(message)
        try:
            _, late = await asyncio.wait(waiting, timeout=self.options.timeout)
        finally:
            for future in waiting:
                future.cancel()  # those that are not done
        if late:
            raise self._late_error()
        errors = [future.exception() for future in waiting]
        for place, error in enumerate(errors):
            _raise_error(place, error)
        translations = [future.result() for future in waiting]
        return _messages.TranslateAnswer.model_construct(run=run, translations=translations)

    async def _stream(self, message: _messages.TranslateRequest) -> Response:
        """Return the translation of a text in pieces; a failure before the first piece has its status."""
        pieces, end = Pieces(), time.monotonic() + self.options.timeout
        run, (translation,) = self._submit(message, pieces.write)
        translation.add_done_callback(pieces.end)

        def close() -> None:
            pieces.close()
            translation.cancel()

        def expired() -> bool:
            return time.monotonic() > end or (self.stopping and self.seconds_left() < _LAST_WORDS)

        try:
            first = await pieces.read(expired)
            if first is None:
                _raise_error(0, translation.exception())
        except BaseException as error:
            close()
            if isinstance(error, TimeoutError):
                raise (_stopping_error() if self.stopping else self._late_error()) from None
            raise

        async def write_events() -> AsyncIterator[str]:
            piece = first
            try:
                while piece is not None:
                    yield format_event(_messages.Piece(piece=piece))
                    piece = await pieces.read(expired)
            except TimeoutError:
                late = _stopping_error() if self.stopping else self._late_error()
                yield format_event(_messages.Problem(detail=late.detail), "error")
                return
            if (error := translation.exception()) is not None:
                _LOG.error("a streamed translation failed", exc_info=error)
                yield format_event(_messages.Problem(detail=_FAILURE), "error")
                return
            answer = _messages.TranslateAnswer.model_construct(
                run=run, translations=[translation.result()]
            )
            yield format_event(answer, "end")

        def on_end() -> None:
            close()
            self.open_requests -= 1

        self.open_requests += 1
        return EventStream(write_events(), on_end)

    def _late_error(self) -> HTTPException:
        text = f"no translation within {self.options.timeout:g} seconds"
        return HTTPException(HTTPStatus.GATEWAY_TIMEOUT, text, _SOON)

    def health(self) -> _messages.Health:
        """Return the served runs, and whether the server takes requests."""
        runs = {
            name: _messages.ServedRun(
                task=one.task.kind, step=one.step, languages=list(one.task.languages)
            )
            for name, one in self.translations.translators.items()
        }
        status = "stopping" if self.stopping else "ok"
        return _messages.Health(status=status, version=__version__, runs=runs)

    def describe_runs(self) -> list[RunOnPage]:
        """Return what the page says about the served runs."""
        return [
            RunOnPage(
                name,
                one.task.purpose,
                one.task.languages,
                one.step,
                self.examples.get(name, one.task.examples),
            )
            for name, one in self.translations.translators.items()
        ]


def _raise_error(place: int, error: BaseException | None) -> None:
    """Raise the error of the text at a place of a request, if there is one."""
    if isinstance(error, TaskError):
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"texts.{place}: {error}")
    if error is not None:
        raise error


def _stopping_error() -> HTTPException:
    return HTTPException(
        HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping", {**_SOON, "Connection": "close"}
    )


class _Direct(APIRoute):
    """A route whose endpoint takes the request: FastAPI describes it, but parses no parameters of each request."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint itself."""
        return self.endpoint


class _HeadAsGet:
    """ASGI middleware: answers HEAD as GET; uvicorn leaves the body out."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


def make_app(service: Service, hosts: Hosts | None = None) -> FastAPI:
    """Make the application; it closes the service's queue when it ends.

    Args:
        service: answers requests.
        hosts: the hosts that requests may name; None: those of the loopback.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.stop()
        await asyncio.get_running_loop().run_in_executor(
            None, service.batcher.close, service.seconds_left()
        )

    # Their pages load scripts from elsewhere.
    app = FastAPI(
        title="heed",
        version=__version__,
        description="Translations by runs that heed trained.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect names the host that the request named
        lifespan=lifespan,
    )
    app.router.route_class = _Direct
    problem: dict[str, Any] = {"model": _messages.Problem}
    responses: dict[int | str, dict[str, Any]] = {
        HTTPStatus.OK: {"content": {EventStream.media_type: {"schema": {"type": "string"}}}}
    }
    responses |= {status: problem | {"description": why} for status, why in _REFUSALS.items()}
    schema = service.request_model.model_json_schema()
    options = service.options
    page, policy = make_page(service.describe_runs(), options.max_beam, options.max_characters)

    @app.post(
        "/translate",
        response_model=_messages.TranslateAnswer,
        response_model_exclude_none=True,
        responses=responses,
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
        summary="Translate texts",
    )
    async def translate(request: Request) -> Response:
        return await service.translate(request)

    @app.get(
        "/health",
        response_model=_messages.Health,
        responses={HTTPStatus.SERVICE_UNAVAILABLE: {"model": _messages.Health}},
        summary="Which runs are served",
    )
    async def health(_: Request) -> Response:
        status = HTTPStatus.SERVICE_UNAVAILABLE if service.stopping else HTTPStatus.OK
        return Response(service.health().model_dump_json(), status, media_type=_JSON)

    @app.get("/metrics", summary="Figures for Prometheus", response_class=Response)
    async def metrics(_: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def index(_: Request) -> Response:
        return Response(
            page,
            media_type="text/html",
            headers={
                "Content-Security-Policy": policy,
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cache-Control": "no-cache",
            },
        )

    @app.exception_handler(Exception)
    async def handle_failure(request: Request, error: Exception) -> Response:
        _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse({"detail": _FAILURE}, HTTPStatus.INTERNAL_SERVER_ERROR)

    app.add_middleware(_HeadAsGet)
    app.add_middleware(functools.partial(HostFilter, hosts=hosts or Hosts()))
    paths = frozenset({"/", "/translate", "/health", "/metrics", "/openapi.json"})
    app.add_middleware(functools.partial(RequestCounter, metrics=service.metrics, paths=paths))
    return app
