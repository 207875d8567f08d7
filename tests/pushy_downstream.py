"""A downstream MCP server over stdio that says too much; plain JSON-RPC, so that it starts at once.

    python pushy_downstream.py [many | nested | heavy | pages | http://…]

The word chooses its list of tools: 100,000 of them, schemas nested too deep, schemas that take long to check, pages
without end, schemas that point to an address.
Tools: `ask` sends a request of its own and tells what it was answered, `flood` sends n notifications of a kind,
`big` answers with n bytes of text, `parts` with n parts, `objects` with n objects, `echo` at once, `hold` only when
`late` is called, `lists` how often its tools were listed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
OBJECT: dict[str, Any] = {"type": "object"}
NAMES = ("ask", "flood", "big", "parts", "objects", "echo", "hold", "late", "lists")
HELD: list[Any] = []
LISTED: list[None] = []


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return {"type": "object", **schema}


def tools() -> list[dict[str, Any]]:
    match MODE:
        case "many":
            return [{"name": f"t{number}", "inputSchema": OBJECT} for number in range(100_000)]
        case "nested":
            return [{"name": "deep", "inputSchema": nested(60)}, {"name": "echo", "inputSchema": OBJECT}]
        case "heavy":
            branches: dict[str, Any] = {f"p{number}": {"anyOf": [{}, {}]} for number in range(800)}
            heavy = {"type": "object", "properties": branches, "pattern": "(a+)+$"}
            large = {**OBJECT, "description": "x" * 5_000_000}
            named = [{"name": f"t{number}", "inputSchema": heavy} for number in range(3)]
            return [*named, {"name": "large", "inputSchema": large}, {"name": "echo", "inputSchema": OBJECT}]
        case "pages":
            LISTED.append(None)
            return [{"name": f"t{len(LISTED)}", "inputSchema": OBJECT}]
    if MODE:
        parts = {"$ref": MODE, "$dynamicRef": MODE, "$schema": MODE, "$id": MODE}
        return [
            {
                "name": key[1:],
                "inputSchema": {"type": "object", "properties": {"a": {key: value}}, key: value},
            }
            for key, value in parts.items()
        ]
    LISTED.append(None)
    return [{"name": name, "inputSchema": OBJECT} for name in NAMES]


def notification(kind: str, token: Any) -> dict[str, Any]:
    match kind:
        case "progress":
            return {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
        case "log":
            return {"method": "notifications/message", "params": {"level": "info", "data": "x"}}
    return {"method": "notifications/tools/list_changed"}


def call(params: dict[str, Any], request_id: Any) -> dict[str, Any] | None:
    given = params["arguments"]
    match params["name"]:
        case "ask":
            send({"id": "mine", "method": given["method"], "params": given["params"]})
            answer = json.loads(sys.stdin.readline())
            return text(json.dumps({key: answer[key] for key in ("id", "result", "error") if key in answer}))
        case "flood":
            one = notification(given["kind"], params["_meta"]["progressToken"])
            lines = (json.dumps({"jsonrpc": "2.0", **one}) + "\n") * 1_000
            for _ in range(given["n"] // 1_000):
                sys.stdout.write(lines)
            return text("said")
        case "hold":
            HELD.append(request_id)
            token = params["_meta"]["progressToken"]
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
            return None
        case "late":
            for held in HELD:
                send({"id": held, "result": text("too late")})
            return text("in time")
        case "lists":
            return text(str(len(LISTED)))
        case "big":
            return text("x" * given["n"])
        case "parts":
            return {"content": [{"type": "text", "text": "x"}] * given["n"]}
        case "objects":
            return {"content": [], "structuredContent": {"a": [{"b": "x" * 100}] * given["n"]}}
    return text("here")


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        match message["method"]:
            case "initialize":
                capabilities = {"tools": {"listChanged": True}}
                info = {"name": "pushy", "version": "1"}
                version = "2025-11-25"
                result: dict[str, Any] | None = {
                    "protocolVersion": version,
                    "capabilities": capabilities,
                    "serverInfo": info,
                }
            case "tools/list":
                result = {"tools": tools(), **({"nextCursor": "more"} if MODE == "pages" else {})}
            case "tools/call":
                result = call(message["params"], message["id"])
            case _:
                error = {"code": -32601, "message": "Method not found"}
                send({"id": message["id"], "error": error})
                continue
        if result is not None:
            send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
