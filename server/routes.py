"""The HTTP door: plain Starlette routes over one `Executions`, for our app and for any FastAPI or Starlette host.

A host brings its own lifespan (`async with executions`), its own guard and its own idea of who calls
(`scope["loopwright.owner"]`, auth.py; else everything belongs to `local`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from executor.errors import LoopwrightError, NotFound, Stopping, StorageUnavailable
from executor.executions import Executions, Started
from executor.schema import Execution, Model, TaskRequest

from .auth import is_known, owner_of
from .bodies import parse, read_body, read_model
from .headers import Prefer, idempotency_key, last_event, wanted
from .messages import CancelRequest, DecisionRequest, ExecutionPage, Listing
from .openapi import document
from .presence import Closing, gone, present
from .problems import InvalidHeader, MethodNotAllowed, refused
from .ready import ToolsStatus, no_tools, readiness
from .sse import EventStream, Place

OnDisconnect: TypeAlias = Literal["continue", "cancel"]
Handler: TypeAlias = Callable[[Request], Awaitable[ASGIApp]]

PREFIX: Final = "/api/v1/agent"
EXECUTE: Final = PREFIX + "/execute"
RUN: Final = "/agent/run"
OPENAPI: Final = "/openapi.json"
WAIT_SECONDS: Final = 50.0
_JSON_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Methods:
    """One path: who answers which method. Every refusal is a problem document, in a foreign host too."""

    def __init__(self, **handlers: Handler) -> None:
        self._handlers = handlers

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that are answered."""
        return tuple(self._handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            handler = self._handlers.get(scope["method"])
            if handler is None:
                raise MethodNotAllowed(scope["method"], ", ".join(self.methods))
            response = await handler(Request(scope, receive))
        except LoopwrightError as error:
            response = refused(error)
        except ClientDisconnect:
            return  # before its request was whole: nothing was done, and nobody reads an answer
        await response(scope, receive, send)


def routes(
    executions: Executions,
    *,
    on_disconnect: OnDisconnect = "continue",
    wait_seconds: float = WAIT_SECONDS,
    ping: float = 15.0,
    send_timeout: float = 30.0,
    tools: ToolsStatus = no_tools,
) -> list[Route]:
    """The routes of DESIGN §4 but `/mcp`.

    `on_disconnect`: what becomes of a run whose client leaves before its end (one that was handed over, or that
    is only looked at, always goes on). `wait_seconds`: how long a client that wants JSON waits when it doesn't say.
    `tools`: how the tool servers are, for `/readyz`.
    """
    door = Door(executions, on_disconnect, wait_seconds, ping, send_timeout, tools)
    one = PREFIX + "/executions/{execution_id}"
    return [
        Route(EXECUTE, Methods(POST=door.execute)),
        Route(RUN, Methods(POST=door.execute)),
        Route(PREFIX + "/executions", Methods(GET=door.listing)),
        Route(one, Methods(GET=door.history, DELETE=door.delete)),
        Route(one + "/events", Methods(GET=door.events)),
        Route(one + "/cancel", Methods(POST=door.cancel)),
        Route(one + "/approvals/{call_id:path}", Methods(POST=door.decide)),
        Route("/healthz", Methods(GET=_healthy, HEAD=_healthy)),
        Route("/readyz", Methods(GET=door.ready, HEAD=door.ready)),
        Route(OPENAPI, Methods(GET=_openapi)),
    ]


class Door:
    """The handlers. Holds nothing of any execution."""

    def __init__(
        self,
        executions: Executions,
        on_disconnect: OnDisconnect,
        wait_seconds: float,
        ping: float,
        send_timeout: float,
        tools: ToolsStatus,
    ) -> None:
        self._executions = executions
        self._tools = tools
        self._on_disconnect = on_disconnect
        self._wait_seconds = wait_seconds
        self._ping = ping
        self._send_timeout = send_timeout
        self._closing = Closing(lambda: executions.closed)

    # ── a run ────────────────────────────────────────────────────────────────────────────────────────

    async def execute(self, request: Request) -> ASGIApp:
        """Start a run, or join the one that the `Idempotency-Key` names, and answer as the client wants."""
        asked = await self._asked(request)
        started = await self._executions.start(
            asked.task, owner=asked.owner, idempotency_key=asked.idempotency_key
        )
        prefer = Prefer.of(request.headers)
        if prefer.respond_async or wanted(request.headers) == "json":
            return await self._as_json(request, started, asked.owner, prefer)
        after = 0 if started.fresh else asked.after
        place = Place(execution_id=started.execution.execution_id, owner=asked.owner, after=after)
        return await self._stream(place, started, _location(request, started.execution))

    async def _asked(self, request: Request) -> Asked:
        if self._executions.closing.is_set():
            raise Stopping  # before the body is read
        key, after = idempotency_key(request.headers), last_event(request)
        if after and key is None:
            raise InvalidHeader(
                "Last-Event-ID without an Idempotency-Key would start the task once more: to go on reading, GET "
                "the events of the execution."
            )
        task = await read_model(request.headers, request.receive, TaskRequest)
        return Asked(task, owner_of(request.scope), key, after)

    async def _stream(
        self, place: Place, started: Started | None = None, headers: Mapping[str, str] | None = None
    ) -> ASGIApp:
        """The events after a place; 204 when there will never be any. Raises `BeyondTheLog`."""
        if started is None or not started.fresh:
            execution, entries = await self._executions.page(
                place.execution_id, owner=place.owner, after=place.after, limit=1
            )
            if execution.ended and not entries:
                return Response(status_code=204, headers=headers)
        return EventStream(
            self._executions,
            place,
            closing=self._closing,
            headers=headers,
            left=self._left(place, started),
            ping=self._ping,
            send_timeout=self._send_timeout,
        )

    def _left(self, place: Place, started: Started | None) -> Callable[[], Awaitable[object]] | None:
        """What happens when the client leaves; one that only joined or looks on stops nothing."""
        if self._on_disconnect == "continue" or started is None or not started.fresh:
            return None

        async def cancel() -> None:
            if not self._executions.closing.is_set():
                await self._executions.cancel(
                    place.execution_id, owner=place.owner, reason="the client has left"
                )

        return cancel

    async def _as_json(self, request: Request, started: Started, owner: str, prefer: Prefer) -> ASGIApp:
        """The finished execution, or, when it takes longer than the client wants to wait, 202."""
        unsaid = 0.0 if prefer.respond_async else self._wait_seconds
        seconds = unsaid if prefer.wait is None else prefer.wait
        place = Place(execution_id=started.execution.execution_id, owner=owner)
        if not started.execution.ended:
            async with present(gone(request.receive), self._closing) as presence:
                await self._end(place, started.execution, seconds)
            if presence.cut == "gone":
                if left := self._left(place, started):
                    await left()
                raise ClientDisconnect
        execution = await self._as_it_stands(started.execution, owner)
        applied = {"Preference-Applied": prefer.applied} if prefer.applied else {}
        return _json(execution, 200 if execution.ended else 202, {**_location(request, execution), **applied})

    async def _as_it_stands(self, execution: Execution, owner: str) -> Execution:
        try:
            return await self._executions.get(execution.execution_id, owner=owner)
        except StorageUnavailable:
            if not self._executions.closed.is_set():
                raise
            return execution  # accepted is what matters now: it goes on at the next start

    async def _end(self, place: Place, execution: Execution, seconds: float) -> None:
        """Wait for the final event, or for `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                async for _ in self._executions.events(
                    place.execution_id, owner=place.owner, after=execution.last_seq
                ):
                    pass
        except TimeoutError:
            pass

    # ── an execution ─────────────────────────────────────────────────────────────────────────────────

    async def events(self, request: Request) -> ASGIApp:
        place = Place(
            execution_id=_execution_id(request), owner=owner_of(request.scope), after=last_event(request)
        )
        if wanted(request.headers) == "events":
            return await self._stream(place)
        execution, lines = await self._executions.lines(
            place.execution_id, owner=place.owner, after=place.after
        )
        tail = b'],"last_seq":%d,"status":"%s"}' % (execution.last_seq, execution.status.encode())
        body = b"".join((b'{"events":[', b",".join(lines), tail))
        return Response(body, 200, _JSON_HEADERS, "application/json")

    async def history(self, request: Request) -> ASGIApp:
        body = await self._executions.history_json(_execution_id(request), owner=owner_of(request.scope))
        return Response(body, 200, _JSON_HEADERS, "application/json")

    async def listing(self, request: Request) -> ASGIApp:
        query = Listing.of(request)
        page = await self._executions.list(
            owner=owner_of(request.scope),
            status=query.status,
            session_id=query.session_id,
            limit=query.limit,
            cursor=query.cursor,
        )
        return _json(ExecutionPage(executions=list(page.executions), next_cursor=page.next_cursor))

    async def cancel(self, request: Request) -> ASGIApp:
        """202: it ends as soon as it can. 200: it had ended, nothing changes."""
        said = await _optional(request)
        reason = {"reason": said.reason} if said.reason else {}
        execution = await self._executions.cancel(
            _execution_id(request), owner=owner_of(request.scope), **reason
        )
        return _json(execution, 200 if execution.ended else 202)

    async def decide(self, request: Request) -> ASGIApp:
        said = await read_model(request.headers, request.receive, DecisionRequest)
        return _json(
            await self._executions.decide(
                _execution_id(request),
                request.path_params["call_id"],
                said.decision,
                owner=owner_of(request.scope),
                reason=said.reason,
                arguments_sha256=said.arguments_sha256,
            )
        )

    async def delete(self, request: Request) -> ASGIApp:
        await self._executions.delete(_execution_id(request), owner=owner_of(request.scope))
        return Response(status_code=204)

    async def ready(self, request: Request) -> ASGIApp:
        """Whether to send requests here: the log can be read and written, and nothing stops. A tool server that
        is away is shown, and is no reason not to: it costs its own tools only."""
        await self._executions.ready()
        return Response(
            to_json(readiness(self._tools(), known=is_known(request.scope))),
            200,
            _JSON_HEADERS,
            "application/json",
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to run a task, read."""

    task: TaskRequest
    owner: str
    idempotency_key: str | None
    after: int


async def _optional(request: Request) -> CancelRequest:
    """A body that may be left out."""
    if "content-type" in request.headers:
        return await read_model(request.headers, request.receive, CancelRequest)
    body = await read_body(request.headers, request.receive)
    return parse(body, CancelRequest) if body else CancelRequest()


def _execution_id(request: Request) -> str:
    execution_id = request.path_params["execution_id"]
    if not execution_id.isascii():
        raise NotFound  # no store need cope with it
    return str(execution_id)


def _location(request: Request, execution: Execution) -> dict[str, str]:
    above = _above(request.scope, EXECUTE, RUN)
    return {"Location": f"{above}{PREFIX}/executions/{execution.execution_id}"}


def _above(scope: Scope, *own: str) -> str:
    """The path under which a host has put our routes, as clients write it; `own`: where this one may stand.

    A mount shows in `path` and in `root_path`, a FastAPI router's prefix in `path` alone. What a proxy has cut off
    and the operator has named (`uvicorn --root-path`) is in `root_path`; not every server puts it before `path`.
    """
    path: str = scope["path"].removesuffix("/")
    root: str = scope.get("root_path", "").removesuffix("/")
    above = next(path.removesuffix(route) for route in own if path.endswith(route))
    above = above if f"{path}/".startswith(f"{root}/") else root + above
    return quote(above, safe="/:@!$&'()*+,;=~")


def _json(value: Model, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = value.__pydantic_serializer__.to_json(value)
    return Response(body, status, {**_JSON_HEADERS, **(headers or {})}, "application/json")


async def _healthy(request: Request) -> ASGIApp:
    return Response(b'{"status":"ok"}', 200, _JSON_HEADERS, "application/json")


async def _openapi(request: Request) -> ASGIApp:
    return Response(document(_above(request.scope, OPENAPI)), 200, _JSON_HEADERS, "application/json")
