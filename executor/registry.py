"""Plain Python callables as tools: a registry by name, with OpenAI function definitions beside it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from executor.tools import Tool, Toolbox, ToolContext

log = logging.getLogger("loopwright.executor")

Registered = Tool | Callable[..., Any]


def registered_tools(
    registry: Mapping[str, Registered], schemas: Sequence[Mapping[str, Any]]
) -> dict[str, Tool]:
    """The tools that have both a callable and a definition, by name, in the definitions' order.

    A definition is `{"type": "function", "function": {…}}` or the inner object `{name, description,
    parameters}` alone. A registry value may be a `Tool`, which needs no definition. What has only one half
    is not offered.
    """
    tools = {name: tool for name, tool in registry.items() if isinstance(tool, Tool)}
    for schema in schemas:
        function = schema.get("function", schema)
        name = function["name"]
        target = registry.get(name)
        if target is None:
            log.warning("tool %s has a definition but no callable in the registry: not offered", name)
        elif not isinstance(target, Tool):
            tools[name] = Tool(
                name=name,
                description=function.get("description") or "",
                parameters_schema=function.get("parameters") or {"type": "object", "properties": {}},
                call=functools.partial(_call, target),
            )
    return tools


class Owner(Protocol):
    """Holds the registry and the definitions as plain attributes."""

    tool_registry: Mapping[str, Registered]
    tool_schemas: Sequence[Mapping[str, Any]]


class RegistryTools:
    """A `Toolbox` over its owner's attributes, read at each use, and the tools of another one `beside` it.

    The registry's own names win.
    """

    def __init__(self, owner: Owner, *, beside: Toolbox | None = None) -> None:
        self._owner = owner
        self._beside = beside

    async def ready(self) -> None:
        if self._beside is not None:
            await self._beside.ready()

    def tools(self) -> Mapping[str, Tool]:
        own = registered_tools(self._owner.tool_registry, self._owner.tool_schemas)
        return own if self._beside is None else {**self._beside.tools(), **own}

    def connecting(self) -> bool:
        return self._beside is not None and self._beside.connecting()


async def _call(function: Callable[..., Any], arguments: dict[str, Any], context: ToolContext) -> Any:
    """`await function(**arguments)`; a plain function runs in a thread of its own."""
    if wanted := _context_parameter(function):
        arguments = {**arguments, wanted: context}
    call = functools.partial(function, **arguments)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return await call()
    result = await _in_thread(call)
    return await result if inspect.isawaitable(result) else result


def _context_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that is annotated `ToolContext`, if there is one."""
    target = function if hasattr(function, "__annotations__") else type(function).__call__
    annotations: dict[str, Any] = getattr(inspect.unwrap(target), "__annotations__", {})
    for name, annotation in annotations.items():
        if annotation is ToolContext or (isinstance(annotation, str) and annotation.endswith("ToolContext")):
            return name
    return None


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Run in a daemon thread: a call that never returns must not keep the process from ending, as the
    threads of an executor pool would."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():  # the call may have been given up
            future.set_result(result) if error is None else future.set_exception(error)

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(call)
        except StopIteration as raised:  # cannot be set on a future
            error = RuntimeError(f"StopIteration: {raised}")
        except BaseException as raised:  # noqa: BLE001 - it is the caller's, in the caller's task
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            log.info("a tool's thread ended after its event loop")

    threading.Thread(target=run, name="loopwright-tool", daemon=True).start()
    return await future
