"""The user's own tools in Python, named `module:attribute` (`--toolset`, `LOOPWRIGHT_TOOLSETS`)."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

from executor.registry import check_registered, registered_tools
from executor.tools import Tool
from tool_clients.detached import detached
from tool_clients.errors import ToolsetError
from tool_clients.toolset import Toolset

from .own_code import likely, module_and_attribute
from .settings import SettingsError

SETTING = "LOOPWRIGHT_TOOLSETS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What one name stands for: tools, or a factory that makes them each time they are opened."""

    name: str
    value: Any
    is_factory: bool

    async def tools(self, stack: AsyncExitStack) -> dict[str, Tool]:
        """Its tools; what must be left again goes on the stack. Raises `SettingsError`."""
        value = await self._made() if self.is_factory else self.value
        try:
            tools = await stack.enter_async_context(Toolset(_of_registry(value)))
            check_registered(tools, [])
        except ToolsetError as error:
            raise self.refused(str(error), error.code) from error
        except (TypeError, ValueError) as error:  # what no provider would take
            raise self.refused(str(error), "invalid_schema") from error
        return tools

    async def _made(self) -> Any:
        """What the factory gives; a plain one is called in a thread, as a plain tool is."""
        try:
            made = await detached(self.value)
            return await made if inspect.isawaitable(made) else made
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raise self.refused(f"{type(error).__name__}: {error}", "factory_failed") from error

    def refused(self, why: str, code: str) -> SettingsError:
        return SettingsError(f"{SETTING}: {self.name}: {why}", code=code)


class OwnTools:
    """The tools that the settings name: loaded when it is made, open within `opened`."""

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self._sources = sources
        self.offered: Mapping[str, Mapping[str, Tool]] = {}
        """Toolset → its tools by name, while they are open."""

    @classmethod
    def load(cls, names: Iterable[str]) -> Self:
        """Import what the names stand for. Raises `SettingsError`. For a thread: it runs the user's own code."""
        return cls([_load(name) for name in names])

    @property
    def tools(self) -> dict[str, Tool]:
        """All of them by name, while they are open."""
        return {name: tool for theirs in self.offered.values() for name, tool in theirs.items()}

    def states(self) -> list[dict[str, Any]]:
        """How each toolset is, in the words for a server: open it is ready, and what cannot be opened is refused."""
        unknown = dict.fromkeys(("reason", "protocol_version", "connect_ms", "answer_ms"))
        return [
            {
                "name": name,
                "state": "ready",
                "transport": "python",
                **unknown,
                "tools": list(theirs),
                "notes": [],
            }
            for name, theirs in self.offered.items()
        ]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[dict[str, Tool]]:
        """All the tools by name, each toolset open within the body. Raises `SettingsError`."""
        async with AsyncExitStack() as stack:
            offered: dict[str, Mapping[str, Tool]] = {}
            for source in self._sources:
                tools = await source.tools(stack)
                for other, theirs in offered.items():
                    if clash := sorted(tools.keys() & theirs.keys()):
                        raise source.refused(
                            f"{other} has a tool {clash[0]!r} too: rename one of them.", "name_clash"
                        )
                offered[source.name] = tools
            self.offered = offered
            yield self.tools


def _load(name: str) -> Source:
    module, attribute = module_and_attribute(name, setting=SETTING, example="my_tools:shop")
    if not hasattr(module, attribute):
        raise SettingsError(
            f"{SETTING}: {name} is not there: {likely(attribute, _names(module))}", code="attribute_not_found"
        )
    value = getattr(module, attribute)
    source = Source(name=name, value=value, is_factory=inspect.isroutine(value) or inspect.isclass(value))
    if source.is_factory and (wanted := _wanted(value)):
        raise source.refused(
            f"a function named here is called to make the tools, and {attribute} wants {', '.join(wanted)}. To offer "
            f"it as a tool, name a list: TOOLS = [{attribute}].",
            "unknown_kind",
        )
    return source


def _wanted(factory: Callable[..., Any]) -> list[str]:
    """The arguments that it cannot be called without."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # a builtin that does not say
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _names(module: ModuleType) -> list[str]:
    """What the module itself calls by a name that is not private."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value) and not inspect.isclass(value)
    )


def _of_registry(value: Any) -> Any:
    """A pair `(tool_registry, tool_schemas)`, as an executor takes them, as its tools; anything else as it is."""
    match value:
        case tuple() if len(value) == 2 and isinstance(value[0], Mapping) and isinstance(value[1], list):
            check_registered(*value)
            return registered_tools(*value)
        case _:
            return value
