"""The user's own Pydantic AI agent, named `module:attribute` (`--agent`, `LOOPWRIGHT_AGENT`)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from .settings import SettingsError

if TYPE_CHECKING:
    from pydantic_ai import Agent

SETTING = "LOOPWRIGHT_AGENT"


def load_agent(name: str) -> Agent[Any, Any]:
    """The agent of this name; its module is looked for in the current folder first. Raises `SettingsError`.

    For a thread: importing Pydantic AI alone takes a second.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and attribute.isidentifier() and all(map(str.isidentifier, module_name.split(".")))):
        raise SettingsError(f"{SETTING}: {name!r} is not module:attribute, such as my_agents:helper.")
    module = _module(module_name)
    found = getattr(module, attribute, None)
    if not _is_agent(found):
        what = f"is of type {type(found).__name__}" if hasattr(module, attribute) else "is not there"
        agents = ", ".join(_agents(module)) or "none"
        raise SettingsError(
            f"{SETTING}: {name} {what}: name a Pydantic AI agent of {module_name} ({agents})."
        )
    return found


def _module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise SettingsError(
                f"{SETTING}: there is no module {error.name}: start in the folder that it is in ({folder} is "
                "looked through), or name that folder in PYTHONPATH."
            ) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # the user's own code: whatever it raises, the command ends here
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> SettingsError:
    return SettingsError(f"{SETTING}: importing {name} failed: {type(error).__name__}: {error}")


def _agents(module: ModuleType) -> list[str]:
    return sorted(name for name, value in vars(module).items() if _is_agent(value))


def _is_agent(value: object) -> TypeGuard[Agent[Any, Any]]:
    from pydantic_ai.agent import AbstractAgent

    return isinstance(value, AbstractAgent)
