"""The user's own Python, named `module:attribute` at the command line or in a setting."""

from __future__ import annotations

import importlib
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from .settings import SettingsError

MOST_NAMES = 20


def module_and_attribute(name: str, *, setting: str, example: str) -> tuple[ModuleType, str]:
    """The module, imported, and the attribute's name; the module is looked for in the current folder first.

    Raises `SettingsError`: `invalid_name`, `module_not_found`, `import_failed`.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and attribute.isidentifier() and all(map(str.isidentifier, module_name.split(".")))):
        raise SettingsError(
            f"{setting}: {name!r} is not module:attribute, such as {example}.", code="invalid_name"
        )
    return _module(module_name, attribute, setting), attribute


def likely(attribute: str, names: list[str]) -> str:
    """The name that was probably meant, or all that there are."""
    close = get_close_matches(attribute, names, 1)
    return f"did you mean {close[0]}?" if close else f"it has {', '.join(names[:MOST_NAMES]) or 'nothing'}."


def _module(name: str, attribute: str, setting: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if name.endswith(".py"):
            raise SettingsError(
                f"{setting}: name the module {name[:-3]} without .py: {name[:-3]}:{attribute}.",
                code="module_not_found",
            ) from None
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise SettingsError(
                f"{setting}: there is no module {error.name}: start in the folder that it is in ({folder} is "
                "looked through), or name that folder in PYTHONPATH.",
                code="module_not_found",
            ) from None
        raise _broken(name, setting, error) from error
    except (Exception, SystemExit) as error:  # the user's own code: whatever it raises, the command ends here
        raise _broken(name, setting, error) from error


def _broken(name: str, setting: str, error: BaseException) -> SettingsError:
    return SettingsError(
        f"{setting}: importing {name} failed: {type(error).__name__}: {error}{_place(error)}",
        code="import_failed",
    )


def _place(error: BaseException) -> str:
    """Where in the user's files it was raised; a syntax error says it itself."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [frame for frame in frames if not frame.filename.startswith("<") and frame.filename != __file__]
    theirs = [frame for frame in files if frame.filename != importlib.__file__]
    if isinstance(error, SyntaxError) or not theirs:
        return ""
    return f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})"
