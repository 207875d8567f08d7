"""`loopwright` processes on one database, as two assistants start them: one model, the same tools, real doors."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import mcp
from mcp.client.stdio import stdio_client

from tests.children import ENTRY, PATIENCE, Child, loopwright
from tests.fake_models import Answer, FakeModels, Request
from tests.http_client import EXECUTE, EXECUTIONS, Frame, Stream

TESTS = Path(__file__).parent
ASYNC = {"Prefer": "respond-async"}
CANNOT_WAIT = 600.0


@dataclass
class Model:
    """Answers as the plan of a prompt says, by turn: a request that is repeated gets the same answer."""

    plans: Mapping[str, Sequence[Answer]]
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __call__(self, request: Request) -> Answer:
        prompt = next(m["content"] for m in request.body["messages"] if m["role"] == "user")
        self.asked[prompt, request.turn] += 1
        return self.plans[prompt][request.turn]


@dataclass(frozen=True)
class Server:
    """A `loopwright serve` process and a client of it."""

    child: Child
    url: str
    http: httpx2.AsyncClient

    def freeze(self) -> None:
        if sys.platform != "win32":
            self.child.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if sys.platform != "win32":
            self.child.process.send_signal(signal.SIGCONT)

    async def start(self, prompt: str, **headers: str) -> str:
        """The id of a new run, or of the one that there is."""
        answer = await self.http.post(EXECUTE, json={"prompt": prompt}, headers={**ASYNC, **headers})
        assert answer.status_code in (200, 202), answer.text
        name: str = answer.json()["execution_id"]
        return name

    async def get(self, execution_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"{EXECUTIONS}/{execution_id}")
        found: dict[str, Any] = answer.json()
        return found

    async def events(self, execution_id: str, *, after: int = 0) -> AsyncIterator[Frame]:
        """The events as they come, up to the final one; read from this process."""
        path, headers = f"{EXECUTIONS}/{execution_id}/events", {"Last-Event-ID": str(after)}
        async with self.http.stream("GET", path, headers=headers) as response:
            stream = Stream(response)
            while True:
                yield (frame := await stream.next())
                if frame.json["is_final"]:
                    return

    async def sees(self, execution_id: str, event: str, *, content: str = "", after: int = 0) -> Frame:
        """The first event of this type (with `content` in it)."""
        async with aclosing(self.events(execution_id, after=after)) as frames:  # type: ignore[type-var]
            async for frame in frames:
                if frame.event == event and content in frame.json["content"]:
                    return frame
        raise AssertionError(f"no {event} with {content!r}")

    async def end(self, execution_id: str, *, after: int = 0) -> list[Frame]:
        return [frame async for frame in self.events(execution_id, after=after)]

    async def cancel(self, execution_id: str) -> None:
        assert (await self.http.post(f"{EXECUTIONS}/{execution_id}/cancel")).status_code == 202

    async def decide(self, execution_id: str, call_id: str, decision: str) -> str:
        """ "" for an answer that counts, else the code of the refusal."""
        path = f"{EXECUTIONS}/{execution_id}/approvals/{call_id}"
        answer = await self.http.post(path, json={"decision": decision})
        code: str = answer.json().get("code", "")
        return code


@dataclass
class Place:
    """What the processes of one test have in common: a database, an `mcp.json`, a model, a tally."""

    home: Path
    fake: FakeModels

    @property
    def database(self) -> Path:
        return self.home / "log.db"

    @property
    def tally(self) -> Path:
        return self.home / "tally"

    def effects(self) -> Counter[str]:
        """How often each text was noted."""
        lines = self.tally.read_text().splitlines() if self.tally.exists() else []
        return Counter(line.partition(" ")[2] for line in lines)

    def configure(self) -> None:
        notes = {"command": sys.executable, "args": [str(TESTS / "tally_server.py"), str(self.tally)]}
        servers = {
            "notes": notes,
            "asked": {**notes, "loopwright": {"approve": ["note"]}},
            "slow": {"command": sys.executable, "args": [str(TESTS / "fake_downstream.py")]},
        }
        (self.home / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OPENAI_BASE_URL": self.fake.openai_url,
            "OPENAI_API_KEY": "sk-test",
            "LOOPWRIGHT_MODEL": "openai-chat:fake",
            "LOOPWRIGHT_TOOL_TIMEOUT": str(CANNOT_WAIT),
            "LOOPWRIGHT_DATABASE_URL": f"sqlite:///{self.database}",
            "LOOPWRIGHT_MCP_CONFIG": str(self.home / "mcp.json"),
        }

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Nobody else can write."""
        with closing(sqlite3.connect(self.database, timeout=PATIENCE, isolation_level=None)) as third:
            third.execute("BEGIN IMMEDIATE")
            yield

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Server]:
        """A process that serves HTTP and MCP."""
        command = ("serve", "--port", "0", "--grace", "0")
        async with loopwright(*command, cwd=self.home, env=self.environment) as child:
            url = await child.url()
            async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=4 * PATIENCE) as http:
                yield Server(child, url, http)

    @asynccontextmanager
    async def assistant(self) -> AsyncIterator[mcp.Client]:
        """A client of a process of its own, over stdio."""
        parameters = mcp.StdioServerParameters(
            command=sys.executable, args=[*ENTRY, "stdio"], env=self.environment, cwd=self.home
        )
        with (self.home / "stderr").open("w") as stderr:
            async with mcp.Client(stdio_client(parameters, errlog=stderr)) as client:
                yield client


@asynccontextmanager
async def place(home: Path, plans: Mapping[str, Sequence[Answer]]) -> AsyncIterator[tuple[Place, Model]]:
    model = Model(plans)
    async with FakeModels(model) as fake:
        made = Place(home, fake)
        made.configure()
        yield made, model
