"""The user's own Pydantic AI agent, named `module:attribute` (`--agent`, `LOOPWRIGHT_AGENT`)."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from .own_code import module_and_attribute
from .settings import SettingsError

if TYPE_CHECKING:
    from pydantic_ai import Agent

SETTING = "LOOPWRIGHT_AGENT"


def load_agent(name: str) -> Agent[Any, Any]:
    """The agent of this name. Raises `SettingsError`.

    For a thread: importing Pydantic AI alone takes a second.
    """
    module, attribute = module_and_attribute(name, setting=SETTING, example="my_agents:helper")
    found = getattr(module, attribute, None)
    if not _is_agent(found):
        there = hasattr(module, attribute)
        what = f"is of type {type(found).__name__}" if there else "is not there"
        agents = ", ".join(_agents(module)) or "none"
        raise SettingsError(
            f"{SETTING}: {name} {what}: name a Pydantic AI agent of {module.__name__} ({agents}).",
            code="unknown_kind" if there else "attribute_not_found",
        )
    return found


def _agents(module: ModuleType) -> list[str]:
    return sorted(name for name, value in vars(module).items() if _is_agent(value))


def _is_agent(value: object) -> TypeGuard[Agent[Any, Any]]:
    from pydantic_ai.agent import AbstractAgent

    return isinstance(value, AbstractAgent)
