"""A downstream MCP server over stdio whose tool has an effect that can be counted afterwards.

    python tally_server.py TALLY_FILE

`note` appends one line, `<call key> <text>`, to the file: the last thing that it does before it answers. It says
of itself that it may be called again, which counts only for a server that is trusted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TALLY = Path(sys.argv[1])
NOTE = {
    "name": "note",
    "description": "Notes a text.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"idempotentHint": True},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "tally", "version": "1"},
            }
        case "tools/list":
            return {"tools": [NOTE]}
        case "tools/call":
            text = params["arguments"]["text"]
            with TALLY.open("a") as file:
                file.write(f"{params['_meta']['loopwright/key']} {text}\n")
            return {"content": [{"type": "text", "text": f"noted {text}"}]}
    raise KeyError(method)


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = answer(message["method"], message.get("params", {}))
        except KeyError:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        print(json.dumps(reply), flush=True)
