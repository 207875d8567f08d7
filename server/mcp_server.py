"""The MCP door: one server for both protocol eras, over stdio (mcp_stdio.py) and streamable HTTP.

The base is the SDK's low-level server: `MCPServer` reads signatures, drops unknown arguments and coerces.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    CancelledNotificationParams,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestId,
)
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from executor.executions import LOCAL, Executions
from tool_clients.mcp_tools import DEPTH_META

from .auth import OWNER_KEY, owner_of
from .bodies import read_body
from .mcp_calls import Call, CallKey, Calls, OnDisconnect
from .mcp_lines import Unreadable, body
from .mcp_progress import HEARTBEAT
from .mcp_resources import RESOURCES, TEMPLATES, read_resource
from .mcp_schemas import INSTRUCTIONS, READING, TOOL_NAMES, TOOLS
from .mcp_tools import Caller, Tools
from .problems import TooLarge, TooSlow
from .ready import ToolsStatus, no_tools

WAIT_SECONDS: Final = 50.0
MAX_BODY_BYTES: Final = 1024 * 1024
MAX_SESSIONS: Final = 1_000
"""Sessions of the handshake era that may be open over HTTP: each holds some 100 kB until it is idle for too long."""

NOT_ENTERED: Final = (
    "The MCP endpoint is not running: the app's lifespan must enter what `mcp_routes` gave beside the routes (a "
    "mounted app's own lifespan is never run)."
)

log = logging.getLogger("loopwright.http")

Context: TypeAlias = ServerRequestContext[Calls, Any]


class McpDoor(Server[Calls]):
    """The SDK's server with our tools and resources on it.

    `closed`: set when this door closes for good, so that calls cut off by that don't stop their runs.
    The extension `io.modelcontextprotocol/tasks` will stand here: `self.extensions` names it and
    `add_request_handler` takes its methods; a task is an execution.
    """

    def __init__(
        self,
        executions: Executions,
        *,
        wait_seconds: float,
        on_disconnect: OnDisconnect,
        version: str,
        tools: ToolsStatus,
        heartbeat: float,
    ) -> None:
        super().__init__(
            "loopwright",
            title="Loopwright",
            description="One tool that finishes a job.",
            version=version,
            instructions=INSTRUCTIONS,
            lifespan=self._calls,
            cache_hints={"tools/list": CacheHint(ttl_ms=3_600_000, scope="public")},
            get_tool_input_schema=_no_headers,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )
        self.add_notification_handler(
            "notifications/cancelled", CancelledNotificationParams, self._caller_left
        )
        self.executions = executions
        self.closed = False
        self._open: set[Calls] = set()
        self._on_disconnect = on_disconnect
        self._tools_status = tools
        self._tools = Tools(executions=executions, wait_seconds=wait_seconds, heartbeat=heartbeat)

    @asynccontextmanager
    async def _calls(self, _: Server[Calls]) -> AsyncIterator[Calls]:
        """What the SDK keeps for one connection, or for all connections of the HTTP endpoint."""
        async with Calls(
            closing=self.executions.closing,
            closed=lambda: self.closed,
            on_disconnect=self._on_disconnect,
        ) as calls:
            self._open.add(calls)
            try:
                yield calls
            finally:
                self._open.discard(calls)

    async def answered(self, *, seconds: float) -> None:
        """Return once no call is being served, or after so many seconds: for the end, when no more come."""
        for calls in tuple(self._open):
            await calls.answered(seconds=seconds)

    async def _list_tools(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=list(TOOLS))

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        if params.name not in TOOL_NAMES:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        calls = context.lifespan_context

        async def send(number: float, text: str) -> None:
            await context.session.report_progress(number, None, text)  # nothing without a token

        async def work(call: Call) -> CallToolResult:
            caller = Caller(owner=_owner(context), depth=_depth(params), call=call, calls=calls, send=send)
            return await self._tools.call(params.name, params.arguments, caller)

        serve = calls.read if params.name in READING else calls.serve
        return await serve(_key(context, context.request_id), work)

    async def _caller_left(self, context: Context, params: CancelledNotificationParams) -> None:
        context.lifespan_context.tell(_key(context, params.request_id), params.reason)

    async def _list_resources(self, _: Context, __: PaginatedRequestParams | None) -> ListResourcesResult:
        return ListResourcesResult(resources=list(RESOURCES))

    async def _list_templates(
        self, _: Context, __: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=list(TEMPLATES))

    async def _read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await read_resource(
            str(params.uri), self.executions, owner=_owner(context), tools=self._tools_status
        )


def _no_headers(name: str) -> None:
    """What the SDK holds `Mcp-Param-*` headers against: no schema of ours names one (`x-mcp-header`)."""


def _owner(context: Context) -> str:
    """Who asks: over HTTP whom the door let in, else the local user."""
    return LOCAL if context.request is None else owner_of(context.request.scope)


def _depth(params: CallToolRequestParams) -> int:
    """How many agents stand above a call, as the one right above says."""
    depth = (params.meta or {}).get(DEPTH_META)
    return depth if isinstance(depth, int) and depth > 0 else 0


def _key(context: Context, request_id: RequestId | None) -> CallKey:
    session = None if context.request is None else context.request.headers.get(MCP_SESSION_ID_HEADER)
    # Clients may send an id back as text: 7 and "7" are one, as for the SDK.
    return session, None if request_id is None else str(request_id)


def mcp_server(
    executions: Executions,
    *,
    wait_seconds: float = WAIT_SECONDS,
    on_disconnect: OnDisconnect = "cancel",
    version: str = "",
    tools: ToolsStatus = no_tools,
    heartbeat: float = HEARTBEAT,
) -> McpDoor:
    """The MCP door over `executions`, for any number of connections.

    Every call answers within `wait_seconds`, unless it asks for another time. `on_disconnect`: what becomes of
    a run whose caller vanished without a word before it was answered. `tools`: what `loopwright://tools` shows.
    """
    return McpDoor(
        executions,
        wait_seconds=wait_seconds,
        on_disconnect=on_disconnect,
        version=version,
        tools=tools,
        heartbeat=heartbeat,
    )


def mcp_routes(
    door: McpDoor, *, session_idle_timeout: float = 1800.0
) -> tuple[list[Route], AbstractAsyncContextManager[None]]:
    """The routes `/mcp` and `/mcp/`, and what to enter in the lifespan of the app that holds them: at each start
    again, within that of the executions.

    Hosts, origins and tokens are checked by the app, for all its routes.
    """
    endpoint = _Endpoint(door, session_idle_timeout)
    return [Route(path, endpoint) for path in ("/mcp", "/mcp/")], endpoint


class _Endpoint(AbstractAsyncContextManager[None]):
    """The SDK's endpoint, with a session bound to its owner, and without event replay, which needs a store."""

    def __init__(self, door: McpDoor, session_idle_timeout: float) -> None:
        self._door = door
        self._session_idle_timeout = session_idle_timeout
        self._manager = self._new_manager()
        self._running = AsyncExitStack()
        self._entered = False

    def _new_manager(self) -> StreamableHTTPSessionManager:
        return StreamableHTTPSessionManager(
            self._door,
            max_request_body_size=MAX_BODY_BYTES,
            session_idle_timeout=self._session_idle_timeout,
            max_sessions=MAX_SESSIONS,
        )

    async def __aenter__(self) -> None:
        self._door.closed = False
        self._manager = self._new_manager()  # the SDK's runs once
        await self._running.enter_async_context(self._manager.run())
        self._entered = True

    async def __aexit__(self, *_: object) -> None:
        self._entered = False
        self._door.closed = True  # before the manager cancels what is being served
        await self._running.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._entered:
            log.error("%s", NOT_ENTERED)
            await _refusal(NOT_ENTERED, status_code=503)(scope, receive, send)
            return
        if scope["method"] == "GET" and Headers(scope=scope).get("last-event-id"):
            # The SDK answers 500: https://github.com/modelcontextprotocol/python-sdk (no event store).
            await _refusal("This stream cannot be resumed: leave out Last-Event-ID.")(scope, receive, send)
            return
        if scope["method"] == "POST":
            try:
                receive = await _readable(scope, receive)
            except (Unreadable, TooLarge, TooSlow) as error:
                await _unreadable(error)(scope, receive, send)
                return
            except ClientDisconnect:
                return  # before its message was whole: nobody reads an answer
        await self._manager.handle_request(_bound(scope), receive, send)


async def _readable(scope: Scope, receive: Receive) -> Receive:
    """What gives the request's body once more, made whole, and then what comes. Raises `Unreadable`, `TooLarge`,
    `TooSlow`, `ClientDisconnect`."""
    whole = body(await read_body(Headers(scope=scope), receive, limit=MAX_BODY_BYTES))
    messages: list[Message] = [{"type": "http.request", "body": whole, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def _unreadable(error: Unreadable | TooLarge | TooSlow) -> Response:
    if isinstance(error, Unreadable):
        return Response(error.reply, 400, media_type="application/json")
    return _refusal(str(error), status_code=413 if isinstance(error, TooLarge) else 408)


def _bound(scope: Scope) -> Scope:
    """The scope with the owner as the SDK knows one: it then refuses a session to everybody else."""
    if (owner := scope.get(OWNER_KEY)) is None:
        return scope
    user = AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
    return {**scope, "user": user}


def _refusal(message: str, *, status_code: int = 400) -> JSONResponse:
    error = {"code": INVALID_REQUEST, "message": message}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=status_code)
