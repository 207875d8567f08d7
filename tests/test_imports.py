"""What may import what, and what a library user pays for: the rule of the folders, and the modules loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.requirements import requirement

ROOT: Final = Path(__file__).parents[1]
OURS: Final = frozenset({"executor", "server", "tool_clients"})
DOORS: Final = frozenset({"fastapi", "fastmcp", "mcp", "mcp_types", "sse_starlette", "starlette", "uvicorn"})
"""Web and MCP packages: what a door is made of."""


class Import(NamedTuple):
    """One import as it stands in the source: where, and the absolute name of what it names."""

    place: str
    name: str


def imports(package: str) -> Iterator[Import]:
    """Every import of a package: at the top, inside functions, for type checkers only, by a call with a name."""
    for path in sorted((ROOT / package).rglob("*.py")):
        folder = path.relative_to(ROOT).parent.parts
        yield from _imports(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix(), folder)


def _imports(source: str, file: str, folder: tuple[str, ...]) -> Iterator[Import]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = folder[: len(folder) - level + 1] if level else ()
                parent = ".".join([*above, *([module] if module else [])])
                found = [f"{parent}.{alias.name}" for alias in names]
            case ast.Call(
                func=ast.Name(id="__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                found = [name]
            case _:
                continue
        yield from (Import(f"{file}:{node.lineno}", name) for name in found)


def breaches(package: str, source: Iterator[Import]) -> list[str]:
    """The imports that DESIGN §8 forbids to this package."""
    return [f"{place} imports {name}" for place, name in source if not _allowed(package, name)]


def _allowed(package: str, name: str) -> bool:
    top = name.partition(".")[0]
    match package:
        case "executor":
            return top not in (OURS | DOORS) - {"executor"}
        case "tool_clients":
            return top not in OURS - {"tool_clients"} or f"{name}.".startswith("executor.tools.")
        case _:
            return True


@requirement("embed:imports")
@pytest.mark.parametrize("package", sorted(OURS))
def test_imports_run_one_way(package: str) -> None:
    found = list(imports(package))
    assert found
    assert breaches(package, iter(found)) == []


@pytest.mark.parametrize(
    ("package", "line", "allowed"),
    [
        ("executor", "from executor.log import EventLog", True),
        ("executor", "import httpx2", True),
        ("executor", "from server.app import create_app", False),
        ("executor", "from tool_clients import typed_tools", False),
        ("executor", "def late():\n    import starlette.responses", False),
        ("executor", "if TYPE_CHECKING:\n    from mcp import Client", False),
        ("executor", "importlib.import_module('uvicorn')", False),
        ("executor", "from ..server import app", False),
        ("tool_clients", "from executor.tools import Tool", True),
        ("tool_clients", "from executor import tools", True),
        ("tool_clients", "from mcp import Client", True),
        ("tool_clients", "from executor import Tool", False),
        ("tool_clients", "from executor.toolset import Tool", False),
        ("tool_clients", "import server", False),
        ("tool_clients", "from . import config", True),
        ("server", "from tool_clients.config import Config", True),
    ],
)
def test_the_rule_sees_every_way_to_import(package: str, line: str, allowed: bool) -> None:
    found = _imports(line, "made_up.py", (package,))
    assert (breaches(package, found) == []) is allowed


HEAVY: Final = (*sorted(DOORS), "google", "litellm", "openai", "pydantic_ai", "server", "tool_clients")


@requirement("embed:imports")
def test_a_library_user_loads_no_web_no_mcp_and_no_model_package() -> None:
    code = (
        "import sys; from executor import AgenticLoopExecutor, TaskRequest; "
        "AgenticLoopExecutor({}, []); TaskRequest(prompt='x'); "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "executor" in loaded
    assert loaded.intersection(HEAVY) == set()


def test_a_server_that_starts_loads_only_what_answers_its_first_request() -> None:
    """Each of these takes some ms, and an assistant waits for `initialize`."""
    later = {"jsonschema", "referencing", "regex", "yaml", "litellm", "openai", "pydantic_ai"}
    code = "import sys, server.cli, server.stdio, server.serving; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "server" in loaded
    assert loaded & later == set()
