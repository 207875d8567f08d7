"""A downstream MCP server over stdio whose tool has an effect that can be counted afterwards.

    python tally_server.py TALLY_FILE

`note` appends one line, `<call key> <text>`, to the file: the last thing that it does before it answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TALLY = Path(sys.argv[1])
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "tally", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": "note", "description": "Notes a text.", "inputSchema": SCHEMA}]}
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
