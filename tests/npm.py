"""Programs from npm for the tests marked `node`, as tests/node/package.json names them."""

import json
import os
import shutil
from pathlib import Path
from typing import Final, NoReturn

import pytest

NODE: Final = Path(__file__).parent / "node"


def node() -> str:
    """The Node program: NODE, or the one on PATH."""
    found = os.environ.get("NODE") or shutil.which("node")
    if found is None:
        _missing("no Node: put it on PATH or name it in NODE (>= 22; .ci/run brings one)")
    if not (NODE / "node_modules").is_dir():
        _missing("no npm packages: run `npm install` in tests/node (.ci/run does)")
    return found


def script(package: str, command: str) -> str:
    """The JavaScript file that a package runs as `command`."""
    described = NODE / "node_modules" / package / "package.json"
    if not described.is_file():
        _missing(f"no {package}: run `npm install` in tests/node (.ci/run does)")
    return str(described.parent / json.loads(described.read_text(encoding="utf-8"))["bin"][command])


def _missing(what: str) -> NoReturn:
    """Skip the test; in CI, where nothing may be missing, fail it."""
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)
