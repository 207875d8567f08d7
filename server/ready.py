"""How the tool servers are, as it is shown: in full to who may use them, in short to a probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

ToolsStatus: TypeAlias = Callable[[], Mapping[str, Any]]
"""What `loopwright://tools` shows, as JSON: `{"tools": […], "servers": […]}`."""

_SHORT: Final = ("name", "state", "transport", "protocol_version", "connect_ms", "answer_ms")


def no_tools() -> Mapping[str, Any]:
    return {"tools": [], "servers": []}


def readiness(tools: Mapping[str, Any], *, known: bool) -> dict[str, Any]:
    """What `/readyz` answers when all is well: what `loopwright://tools` says, in short to a caller that is not known.

    It asks for no token, so that reasons and tools are only for those who show one, or need none.
    """
    if known:
        return {"status": "ready", **tools}
    servers = [{key: server[key] for key in _SHORT} for server in tools["servers"]]
    return {"status": "ready", "servers": servers}
