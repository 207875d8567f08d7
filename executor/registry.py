"""Plain Python callables as tools: a registry by name, with OpenAI function definitions beside it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from pydantic_core import to_json

from executor.definitions import Definition, check_schema, checked_name, definition, likely
from executor.tools import Tool, Toolbox, ToolContext, context_parameter

log = logging.getLogger("loopwright.executor")

Registered = Tool | Callable[..., Any]
Refuse = Callable[[Exception], None]
"""What to do about an entry that cannot be used; when it returns, the entry is left out."""

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def _raise(fault: Exception) -> NoReturn:
    raise fault


def registered_tools(
    registry: Mapping[str, Registered],
    schemas: Sequence[Mapping[str, Any]],
    *,
    refuse: Refuse = _raise,
) -> dict[str, Tool]:
    """The tools that have both a callable and a definition, by name, in the definitions' order.

    A registry value may be a `Tool`, which needs no definition; one beside it replaces what it says. The
    registry's keys are the names. A callable without a definition is not offered. For each other entry that
    cannot be used `refuse` gets a `TypeError` or a `ValueError` that names it and the cure.
    """
    callables = _callables(registry, refuse)
    definitions = _definitions(schemas, registry, refuse)
    tools: dict[str, Tool] = {}
    for name, target in callables.items():
        if isinstance(target, Tool):
            tools[name] = _described(target, name, definitions.get(name))
    for name, defined in definitions.items():
        function = callables.get(name)
        if function is not None and not isinstance(function, Tool):
            tools[name] = Tool(
                name=name,
                description=defined.description or "",
                parameters_schema=defined.parameters or _NO_PARAMETERS,
                call=functools.partial(_call, function),
            )
    return tools


def check_registered(registry: Mapping[str, Registered], schemas: Sequence[Mapping[str, Any]]) -> None:
    """Refuse at once what can only be a mistake: `TypeError`, `ValueError`.

    A registry may hold more functions than are offered, so one without a definition is only said in the log.
    """
    tools = registered_tools(registry, schemas)
    for name, tool in tools.items():
        check_schema(tool.parameters_schema, name)
    if bare := [name for name in registry if name not in tools]:
        log.warning(
            "not offered to the model, for want of a definition in tool_schemas: %s (typed_tools of "
            "tool_clients.typed_tools makes one from a function's annotations)",
            ", ".join(bare),
        )


def _callables(registry: Any, refuse: Refuse) -> dict[str, Registered]:
    found: dict[str, Registered] = {}
    with _refusing(refuse):
        if not isinstance(registry, Mapping):
            raise TypeError(
                f"tool_registry is of type {type(registry).__name__}: give functions by name, "
                '{"price": price}, or typed_tools(price); a toolset is opened first, async with Toolset(shop) as tools.'
            )
        for name, target in list(registry.items()):
            with _refusing(refuse):
                place = f"tool_registry[{name!r}]"
                if not isinstance(name, str):
                    raise TypeError(f"{place} has a key of type {type(name).__name__}: give the tool's name.")
                if not callable(target) and not isinstance(target, Tool):
                    raise TypeError(
                        f"{place} is of type {type(target).__name__}: give a function (async or plain) or a Tool."
                    )
                if isinstance(
                    target, Tool
                ):  # any other is offered under a checked definition's name, or not at all
                    checked_name(name, place)
                found[name] = target
    return found


def _definitions(schemas: Any, registry: Any, refuse: Refuse) -> dict[str, Definition]:
    found: dict[str, Definition] = {}
    names = [name for name in registry if isinstance(name, str)] if isinstance(registry, Mapping) else []
    with _refusing(refuse):
        if isinstance(schemas, str | bytes | Mapping) or not isinstance(schemas, Sequence):
            raise TypeError(
                f"tool_schemas is of type {type(schemas).__name__}: give a list of OpenAI function definitions, "
                "[] for none."
            )
        for index, given in enumerate(list(schemas)):
            with _refusing(refuse):
                place = f"tool_schemas[{index}]"
                defined = definition(given, place)
                if defined.name in found:
                    raise ValueError(f"{place} defines {defined.name!r} a second time: leave one of them.")
                if defined.name not in names:
                    raise ValueError(
                        f"{place} defines {defined.name!r}, for which tool_registry has no function. "
                        + likely(defined.name, names)
                    )
                found[defined.name] = defined
    return found


@contextmanager
def _refusing(refuse: Refuse) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as fault:
        refuse(fault)


def _described(tool: Tool, name: str, defined: Definition | None) -> Tool:
    """The tool under its registry's name, as its definition (if there is one) describes it."""
    if defined is None:
        return tool if tool.name == name else replace(tool, name=name)
    description, parameters = defined.description, defined.parameters
    return replace(
        tool,
        name=name,
        description=tool.description if description is None else description,
        parameters_schema=tool.parameters_schema if parameters is None else parameters,
    )


class Owner(Protocol):
    """Holds the registry and the definitions as plain attributes."""

    tool_registry: Mapping[str, Registered]
    tool_schemas: Sequence[Mapping[str, Any]]


class RegistryTools:
    """A `Toolbox` over its owner's attributes, read at each use, and the tools of another one `beside` it.

    The registry's own names win. What was assigned meanwhile breaks no run: an entry that cannot be used is
    left out, and said in the log once.
    """

    def __init__(self, owner: Owner, *, beside: Toolbox | None = None) -> None:
        self._owner = owner
        self._beside = beside
        self._said: set[str] = set()
        self._read: tuple[Mapping[str, Registered], bytes] | None = None
        self._own: Mapping[str, Tool] = {}

    async def ready(self) -> None:
        if self._beside is not None:
            await self._beside.ready()

    def tools(self) -> Mapping[str, Tool]:
        registry, schemas = self._owner.tool_registry, self._owner.tool_schemas
        if self._read is None or not _unchanged(*self._read, registry, schemas):
            self._own = registered_tools(registry, schemas, refuse=self._say)
            self._read = _noted(registry, schemas)
        return self._own if self._beside is None else {**self._beside.tools(), **self._own}

    def _say(self, fault: Exception) -> None:
        if (text := str(fault)) not in self._said:
            self._said.add(text)
            log.warning("a tool is left out: %s", text)

    def connecting(self) -> bool:
        return self._beside is not None and self._beside.connecting()


def _noted(
    registry: Mapping[str, Registered], schemas: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Registered], bytes] | None:
    """Both as they are now, to see a change by; None: no change of these could be seen."""
    try:
        return dict(registry), to_json(schemas)
    except (TypeError, ValueError):  # no mapping, or no JSON
        return None


def _unchanged(
    noted: Mapping[str, Registered],
    written: bytes,
    registry: Mapping[str, Registered],
    schemas: Sequence[Mapping[str, Any]],
) -> bool:
    """Whether both are as they were noted: reading them again takes several times as long as looking."""
    now = _noted(registry, schemas)
    if now is None or now[1] != written or list(now[0]) != list(noted):
        return False
    return all(now[0][name] is target for name, target in noted.items())


async def _call(function: Callable[..., Any], arguments: dict[str, Any], context: ToolContext) -> Any:
    """`await function(**arguments)`; a plain function runs in a thread of its own."""
    if wanted := context_parameter(function):
        arguments = {**arguments, wanted: context}
    call = functools.partial(function, **arguments)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return await call()
    result = await _in_thread(call)
    return await result if inspect.isawaitable(result) else result


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
