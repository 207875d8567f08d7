"""A downstream MCP server over stdio that misbehaves on request; plain JSON-RPC, so that it starts at once.

    python fake_downstream.py [exit|mute|stubborn|loud|loud in lines|late]

`exit`: complains on stderr and ends. `mute`: never answers. `stubborn`: does not end when its stdin does. `loud`:
writes 5 MB to stderr before anything else. `late`: answers a call that was given up.
With GATE=port in the environment it first connects there and waits for the other side to close; with TALLY=path
each call of `hang` adds a line to that file.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

OBJECT = {"type": "object", "properties": {}}
PIXEL = "iVBORw0KGgo="
MODE = sys.argv[1] if len(sys.argv) > 1 else ""
CANCELLED: list[str] = []
EXTRA: list[dict[str, Any]] = []

TOOLS: list[dict[str, Any]] = [
    {
        "name": "echo",
        "description": "Says it again.",
        "inputSchema": {**OBJECT, "additionalProperties": True},
    },
    {"name": "hang", "inputSchema": OBJECT},
    {"name": "crash", "inputSchema": OBJECT},
    {"name": "broken", "inputSchema": {"type": "array"}},
    {"name": "elsewhere", "inputSchema": {**OBJECT, "$defs": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}},
    {"name": "no schema", "inputSchema": {"type": "object", "properties": {"a": {"type": "objekt"}}}},
    {"name": "echo", "description": "The second of that name.", "inputSchema": OBJECT},
    {"name": "fail", "inputSchema": OBJECT},
    {"name": "parts", "inputSchema": OBJECT},
    {"name": "nothing", "inputSchema": OBJECT},
    {"name": "odd", "inputSchema": OBJECT, "outputSchema": {"type": "object", "required": ["never"]}},
    {"name": "env", "inputSchema": OBJECT, "annotations": {"readOnlyHint": True}},
    {"name": "meta", "inputSchema": OBJECT, "annotations": {"idempotentHint": True}},
    {"name": "flood", "inputSchema": OBJECT},
    {"name": "cancelled", "inputSchema": OBJECT},
    {"name": "grow", "inputSchema": OBJECT},
    {"name": "pid", "inputSchema": OBJECT},
    {"name": "gate", "inputSchema": OBJECT},
]
PAGE = 6


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def shout() -> None:
    """5 MB on stderr, in lines of 50 or in none."""
    sys.stderr.write(("x" * 49 + ("\n" if "lines" in MODE else "x")) * 100_000)
    sys.stderr.flush()


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def pass_gate(port: str) -> None:
    """Wait until whoever listens there closes."""
    with socket.create_connection(("127.0.0.1", int(port))) as gate:
        gate.recv(1)


def list_tools(params: dict[str, Any]) -> dict[str, Any]:
    start = int(params.get("cursor", 0))
    offered = TOOLS + EXTRA
    page: dict[str, Any] = {"tools": offered[start : start + PAGE]}
    if start + PAGE < len(offered):
        page["nextCursor"] = str(start + PAGE)
    return page


def call(params: dict[str, Any]) -> dict[str, Any] | None:
    meta = params.get("_meta", {})
    match params["name"]:
        case "echo":
            return text(json.dumps(params["arguments"]))
        case "hang":
            if path := os.environ.get("TALLY"):
                with Path(path).open("a") as file:
                    file.write("hang\n")
            progress = {"progressToken": meta["progressToken"], "progress": 1, "total": 4}
            send({"method": "notifications/progress", "params": progress})
            return None
        case "crash":
            sys.stderr.write("out of cheese\n")
            sys.stderr.flush()
            os._exit(7)
        case "fail":
            return {**text("the disk is full"), "isError": True}
        case "parts":
            return {"content": PARTS, "structuredContent": {"total": 3}}
        case "nothing":
            return {"content": []}
        case "odd":
            return {**text('{"a": 1}'), "structuredContent": {"a": 1}}
        case "env":
            return text(json.dumps(dict(os.environ)))
        case "meta":
            return text(json.dumps({key: value for key, value in meta.items() if "loopwright" in key}))
        case "flood":
            shout()
            return text("still here")
        case "cancelled":
            return text(json.dumps(CANCELLED))
        case "grow":
            EXTRA.append({"name": "grown", "inputSchema": OBJECT})
            send({"method": "notifications/tools/list_changed"})
            return text("grown")
        case "pid":
            return text(str(os.getpid()))
        case "gate":
            pass_gate(params["arguments"]["port"])
            return text("through")
    return text("?")


PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": "two pictures"},
    {"type": "image", "data": PIXEL, "mimeType": "image/png"},
    {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "text of a"}},
    {"type": "resource", "resource": {"uri": "file:///b.bin", "blob": "AAEC", "mimeType": "image/x-b"}},
    {"type": "resource_link", "uri": "file:///c", "name": "c", "description": "the third"},
]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "fake", "version": "1"},
            }
        case "tools/list":
            return list_tools(params)
        case "tools/call":
            return call(params)
    raise KeyError(method)


def main() -> None:
    if port := os.environ.get("GATE"):
        pass_gate(port)
    if MODE.startswith("loud"):
        shout()
    if MODE == "exit":
        sys.exit("no licence found")
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            CANCELLED.append(message["params"].get("reason", ""))
            if MODE == "late":
                send({"id": message["params"]["requestId"], "result": text("too late")})
        if "id" not in message or MODE == "mute":
            continue
        try:
            result = answer(message["method"], message.get("params", {}))
        except KeyError:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        else:
            if result is not None:
                send({"id": message["id"], "result": result})
    while MODE == "stubborn":
        time.sleep(60)


if __name__ == "__main__":
    main()
