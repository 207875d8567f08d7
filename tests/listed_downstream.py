"""A downstream MCP server over stdio that offers what it is told to, three tools to a page.

    python listed_downstream.py NAME TOOLS

TOOLS: a JSON list of tool definitions. Each call is answered with `<NAME>: <tool>`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

NAME, TOOLS = sys.argv[1], json.loads(sys.argv[2])
PAGE = 3


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            info = {"name": NAME, "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            start = int(params.get("cursor", 0))
            more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(TOOLS) else {}
            return {"tools": TOOLS[start : start + PAGE], **more}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"{NAME}: {params['name']}"}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        reply = unknown if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
