"""Ollama on loopback, in a thread of its own: LiteLLM asks it about its models without letting the event loop run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeOllama:
    """What it was asked, in order, and on which thread's behalf. `refuses`: no schema is taken as a `format`."""

    texts: Sequence[str]
    refuses: int | None = None
    url: str = ""
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    shown: int = 0

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the answer to one request."""
        if path == "/api/show":
            self.shown += 1
            return 200, {"template": "{{ .Prompt }}", "model_info": {"q.context_length": 4096}}
        self.bodies.append((path, body))
        if self.refuses is not None and isinstance(body.get("format"), dict):
            return self.refuses, {"error": "invalid JSON schema in format"}
        text = self.texts[sum(1 for _ in self.bodies) - 1 - (self.refuses is not None)]
        said = {"message": {"role": "assistant", "content": text}, "response": text}
        counts = {"prompt_eval_count": 11, "eval_count": 7}
        return 200, {
            "model": "q",
            "created_at": "2026-01-01T00:00:00Z",
            **said,
            **counts,
            "done": True,
            "done_reason": "stop",
        }


@contextmanager
def ollama(*texts: str, refuses: int | None = None) -> Iterator[FakeOllama]:
    """An Ollama that gives these answers, one after the other."""
    fake = FakeOllama(texts, refuses)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, answer = fake.answer(self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
