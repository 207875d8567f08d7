"""Tools from anywhere in Python, opened together and kept open: functions, toolsets, ADK's, whatever holds them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Unpack

from executor.tools import Tool

from .adk_tools import State, adk_tool, is_adk_tool, is_adk_toolset, opened_adk_toolset
from .detached import detached
from .errors import ToolsetError
from .held import held
from .marks import Marks, by_name
from .typed_tools import typed_tool


class Toolset:
    """`async with Toolset(price, shop) as tools:` gives tools by name, for as long as the body runs.

    Takes functions, `Tool`s (ours and Pydantic AI's), toolsets of Pydantic AI, tools and toolsets of Google ADK,
    other `Toolset`s, lists of all these, registries (name → function or `Tool`) and async contexts that give any of
    them. Toolsets are opened and asked for their tools once, here; each stays open until the body ends. `deps` is what
    a Pydantic AI tool finds in its `RunContext`, `state` what an ADK tool finds in its `tool_context`. Marks hold for
    every tool, or for those whose names fit a pattern: `Toolset(shop, needs_approval=["order*"])`.

    Entering raises `ToolsetError`. It may be entered again after it was left.
    """

    def __init__(
        self, *sources: Any, deps: Any = None, state: State | None = None, **marks: Unpack[Marks]
    ) -> None:
        self._sources = sources
        self._deps = deps
        self._state = state
        self._marks: Marks = marks
        self._open: list[AsyncExitStack] = []

    async def __aenter__(self) -> dict[str, Tool]:
        async with AsyncExitStack() as stack:
            tools = await self._tools(stack)
            self._open.append(stack.pop_all())
        return tools

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.pop().aclose()

    async def _tools(self, stack: AsyncExitStack) -> dict[str, Tool]:
        try:
            tools = [tool for source in self._sources for tool in await self._of(source, stack)]
        except RecursionError:
            raise ToolsetError("unknown_kind", "a list or registry of tools holds itself.") from None
        return by_name(tools, self._marks)

    async def _of(self, source: Any, stack: AsyncExitStack) -> list[Tool]:
        """The tools of one thing that we were given; what must be left again goes on the stack."""
        match source:
            case Tool():
                return [source]
            case Toolset():
                return list((await source._tools(stack)).values())
            case Mapping():
                return [
                    replace(await self._one(entry, stack), name=str(name)) for name, entry in source.items()
                ]
            case list() | tuple() | set() | frozenset():
                return [tool for part in source for tool in await self._of(part, stack)]
            case _:
                return await self._of_foreign(source, stack)

    async def _one(self, entry: Any, stack: AsyncExitStack) -> Tool:
        """The one tool that a registry's entry is."""
        tools = await self._of(entry, stack)
        if len(tools) != 1:
            raise ToolsetError(
                "unknown_kind",
                f"{_kind(entry)} is {len(tools)} tools, not one: it has no place in a registry of names.",
            )
        return tools[0]

    async def _of_foreign(self, source: Any, stack: AsyncExitStack) -> list[Tool]:
        # In a thread: other people's code, and what it imports.
        made = await detached(partial(self._tool_or_context, source))
        if isinstance(made, Tool):
            return [made]
        try:
            given = await stack.enter_async_context(held(made, type(source).__name__))
        except ToolsetError:
            raise
        except Exception as error:  # other people's code may raise anything
            raise ToolsetError(
                "not_opened", f"{_kind(source)} cannot be opened: {type(error).__name__}: {error}"
            ) from error
        return await self._of(given, stack)

    def _tool_or_context(self, source: Any) -> Tool | AbstractAsyncContextManager[Any]:
        if is_adk_tool(source):
            return adk_tool(source, state=self._state)
        if is_adk_toolset(source):
            return opened_adk_toolset(source, state=self._state)
        if hasattr(source, "function_schema") or hasattr(source, "call_tool"):
            from .pydantic_toolsets import as_toolset, opened_toolset

            if (toolset := as_toolset(source)) is not None:
                return opened_toolset(toolset, deps=self._deps)
        if isinstance(source, AbstractAsyncContextManager):
            return source
        if not inspect.isroutine(source):
            raise ToolsetError(
                "unknown_kind",
                f"{_kind(source)} is no tool: give functions, Tools, toolsets of Pydantic AI, tools or toolsets of Google "
                "ADK, or a list or registry of them.",
            )
        try:
            return typed_tool(source, deps=self._deps)
        except TypeError as error:
            raise ToolsetError("invalid_schema", str(error)) from error


def _kind(source: object) -> str:
    return f"something of type {type(source).__name__}"
