"""An MCP server over stdio for the files of one folder: list, read, search, count. It changes nothing.

    python examples/files_server.py [FOLDER]

FOLDER is the argument, else FILES_ROOT, else the current folder. Paths outside it are refused, also when a
symbolic link leads there. Answers are bounded and say how to get the rest.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

MAX_FILES = 500  # named in one answer
MAX_HITS = 200
MAX_LINES = 2_000
MAX_CHARACTERS = 48_000
MAX_LINE = 2_000  # characters of a line that are searched
MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_WALK = 50_000  # files looked at
LEFT_OUT = {".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__"}

Glob = Annotated[
    str, Field(description="Which files: '*.py' anywhere, 'docs/*.md', 'src/**/test_*.py'. Default: all.")
]
Pattern = Annotated[str, Field(description="A regular expression, matched line by line. (?i) ignores case.")]


class Folder:
    """The files below one folder, and nothing else."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def file(self, path: str) -> Path:
        """The real file that a path names. Raises `ToolError` when it is not one of the folder's."""
        if "\0" in path:
            raise ToolError("A path cannot hold a NUL character.")
        real = (self.root / path).resolve()
        if not real.is_relative_to(self.root):
            raise ToolError(f"{path!r} is outside the folder that this server may read.")
        if real.is_dir():
            raise ToolError(
                f"{path!r} is a folder: list_files with glob '{path.rstrip('/')}/**' shows its files."
            )
        if not real.is_file():
            raise ToolError(f"There is no file {path!r}: list_files shows what there is.")
        return real

    def files(self, glob: str) -> Iterator[tuple[str, Path]]:
        """Each file that fits the glob, sorted, as (path relative to the folder, real path)."""
        fits = _glob_to_regex(glob)
        looked_at = 0
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = sorted(name for name in subfolders if name not in LEFT_OUT)
            for name in sorted(names):
                looked_at += 1
                if looked_at > MAX_WALK:
                    return
                path = Path(folder, name)
                shown = path.relative_to(self.root).as_posix()
                real = path.resolve()
                if fits.fullmatch(shown) and real.is_relative_to(self.root) and real.is_file():
                    yield shown, real

    def texts(self, glob: str) -> Iterator[tuple[str, str]]:
        """Each text file that fits the glob, as (path, text); binary and huge ones are passed over."""
        for shown, real in self.files(glob):
            text = _text(real)
            if text is not None:
                yield shown, text


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        data = path.read_bytes()
    except OSError:  # gone meanwhile, or not ours to read
        return None
    return None if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def _glob_to_regex(glob: str) -> re.Pattern[str]:
    """`*` stays within a folder, `**` does not; a glob without a slash fits names in every folder."""
    pattern = glob.strip().removeprefix("./") or "**"
    if "/" not in pattern:
        pattern = f"**/{pattern}"
    regex = ""
    for token in re.findall(r"\*\*/|\*\*|\*|\?|.", pattern, re.DOTALL):
        regex += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token, re.escape(token))
    return re.compile(regex, re.DOTALL)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ToolError(f"{pattern!r} is not a regular expression: {error}.") from None


def make_server(root: Path) -> MCPServer:
    """The server for one folder."""
    folder = Folder(root)
    server = MCPServer("files", instructions=f"Reads the files below {folder.root}.", log_level="WARNING")
    read_only = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

    @server.tool(annotations=read_only, structured_output=False)
    def list_files(glob: Glob = "**") -> str:
        """List the files of the folder, one path per line, with their sizes in bytes."""
        lines = [f"{shown} ({real.stat().st_size})" for shown, real in folder.files(glob)]
        if not lines:
            return f"No file fits {glob!r}."
        return _bounded(lines, MAX_FILES, "files: use a narrower glob")

    @server.tool(annotations=read_only, structured_output=False)
    def read_file(
        path: Annotated[str, Field(description="The file, relative to the folder.")],
        start_line: Annotated[int, Field(ge=1, description="The first line to show, from 1.")] = 1,
        max_lines: Annotated[int, Field(ge=1, le=MAX_LINES, description="How many lines to show.")] = 500,
    ) -> str:
        """Read a text file, or a part of it."""
        text = _text(folder.file(path))
        if text is None:
            raise ToolError(f"{path!r} is not a text file of at most {MAX_FILE_BYTES >> 20} MiB.")
        lines = text.splitlines()
        if start_line > max(len(lines), 1):
            raise ToolError(f"{path!r} has only {len(lines)} lines.")
        return _page(lines, start_line, max_lines) or "(the file is empty)"

    @server.tool(annotations=read_only, structured_output=False)
    def search(pattern: Pattern, glob: Glob = "**") -> str:
        """Find lines by a regular expression; each hit as path:line: text."""
        regex = _compile(pattern)
        hits = [
            f"{shown}:{number}: {line.strip()[:200]}"
            for shown, text in folder.texts(glob)
            for number, line in enumerate(text.splitlines(), start=1)
            if regex.search(line[:MAX_LINE])
        ]
        if not hits:
            return f"No line of the files that fit {glob!r} matches {pattern!r}."
        return _bounded(hits, MAX_HITS, "hits: use a narrower pattern or glob")

    @server.tool(annotations=read_only, structured_output=False)
    def count(
        pattern: Annotated[
            str | None, Field(description="Count the matches of this regular expression.")
        ] = None,
        glob: Glob = "**",
    ) -> str:
        """Count files, lines and words, or the matches of a regular expression."""
        texts = [text for _, text in folder.texts(glob)]
        lines = sum(len(text.splitlines()) for text in texts)
        if pattern is None:
            words = sum(len(text.split()) for text in texts)
            return f"{len(texts)} text files, {lines} lines, {words} words"
        regex = _compile(pattern)
        matches = [
            sum(1 for line in text.splitlines() for _ in regex.finditer(line[:MAX_LINE])) for text in texts
        ]
        found_in = sum(1 for number in matches if number)
        return f"{sum(matches)} matches in {found_in} of {len(texts)} text files ({lines} lines)"

    return server


def _bounded(lines: list[str], limit: int, advice: str) -> str:
    shown: list[str] = []
    characters = 0
    for line in lines[:limit]:
        characters += len(line) + 1
        if characters > MAX_CHARACTERS:
            break
        shown.append(line)
    rest = len(lines) - len(shown)
    return "\n".join([*shown, f"… and {rest} more {advice}"] if rest else shown)


def _page(lines: list[str], start: int, limit: int) -> str:
    shown: list[str] = []
    characters = 0
    for line in lines[start - 1 : start - 1 + limit]:
        characters += len(line) + 1
        if characters > MAX_CHARACTERS and shown:
            break
        shown.append(line[:MAX_CHARACTERS])
    following = start + len(shown)
    if following <= len(lines):
        shown.append(f"… {len(lines) - following + 1} more lines: go on with start_line={following}")
    return "\n".join(shown)


def main() -> None:
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("FILES_ROOT", ".")
    root = Path(given)
    if not root.is_dir():
        sys.exit(f"files_server: {given!r} is not a folder")
    make_server(root).run("stdio")


if __name__ == "__main__":
    main()
