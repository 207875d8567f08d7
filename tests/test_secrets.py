"""Keys in every place where an operator may put one, everything made to fail, and nobody told: not the log, not the
database, not the client, not the model."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from urllib.parse import quote

import httpx2

from tests.children import PATIENCE, Child, loopwright
from tests.fake_models import Answer, Call, FakeModels
from tests.http_client import EXECUTE
from tests.requirements import requirement
from tests.test_hostile_servers import HOSTILE

PLACES = ("provider", "variable", "header", "query", "token")
SECRETS = {place: f"Canary-{place}/7+qz&Xv" for place in PLACES}
LEAKS = {f"LEAK_{number}": f"Leaked-canary-{number}-Xv" for number in range(50)}
SCRIPT = [
    Answer(calls=[Call("s__refuse", {}), Call("s__tell", {}), Call("h__any", {})]),
    Answer(text="done"),
    Answer(status=401, message=f"Incorrect API key provided: {SECRETS['provider']}", error_type="auth"),
]


def configure(home: Path) -> None:
    servers = {
        "s": {
            "command": sys.executable,
            "args": [str(HOSTILE)],
            "env": {"SECRET_PLACE": SECRETS["variable"]},
        },
        "h": {
            "url": f"http://127.0.0.1:1/mcp?key={quote(SECRETS['query'], safe='')}",
            "headers": {"Authorization": f"Bearer {SECRETS['header']}"},
        },
        "broken": {"command": "${NOT_SET}", "env": {"KEY": SECRETS["variable"]}},
        "talks": {
            "command": sys.executable,
            "args": [str(HOSTILE), "environment"],
            "env": {"PLAIN_NAME": SECRETS["variable"]},
        },
    }
    (home / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")


def forms(secret: str) -> set[str]:
    """A secret as it stands, and as URLs, JSON and Basic credentials write it."""
    coded = base64.b64encode(secret.encode()).decode().rstrip("=")[:-1]
    return {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], coded}


def files_in(home: Path) -> str:
    kept = [path for path in home.rglob("*") if path.is_file() and path.name != "mcp.json"]
    assert {"log.db", "log.db-wal"} <= {path.name for path in kept}
    return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in kept)


async def used(child: Child, fake: FakeModels, home: Path) -> list[str]:
    """One run in which every tool fails and tells, one that the provider refuses; all that anybody can read."""
    base = await child.url()
    token = {"Authorization": f"Bearer {SECRETS['token']}"}
    async with httpx2.AsyncClient(base_url=base, headers=token, trust_env=False, timeout=PATIENCE) as client:
        read: list[str] = []
        for prompt in ("go", "again"):
            stream = await client.post(EXECUTE, json={"prompt": prompt})
            assert stream.status_code == 200
            read += [stream.text, (await client.get(stream.headers["location"])).text]
        refused = await client.get("/api/v1/agent/executions", headers={"Authorization": "Bearer x"})
        read += [refused.text, (await client.get("/readyz")).text, (await client.get("/openapi.json")).text]
    read += [await asyncio.to_thread(files_in, home), json.dumps(fake.bodies)]
    return read


@requirement("downstream:secrets")
async def test_no_key_is_told_to_anybody_whatever_fails(tmp_path: Path) -> None:
    """CherryHQ/cherry-studio#18648, suthio/redash-mcp#30: keys in logs, and in errors for clients and models."""
    configure(tmp_path)
    async with FakeModels(SCRIPT) as fake:
        settings = {
            "OPENAI_BASE_URL": fake.openai_url,
            "OPENAI_API_KEY": SECRETS["provider"],
            "LOOPWRIGHT_MODEL": "openai-chat:fake",
            "LOOPWRIGHT_TOKENS": f"me:{SECRETS['token']}",
            "LOOPWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path / 'log.db'}",
            "LOOPWRIGHT_LOG_LEVEL": "debug",
            **LEAKS,
        }
        async with (
            asyncio.timeout(4 * PATIENCE),
            loopwright("serve", "--port", "0", cwd=tmp_path, env=settings) as child,
        ):
            read = await used(child, fake, tmp_path)
            child.process.terminate()
            await child.ended()
            read += [*child.said, await child.output()]
    text = "\n".join(read)
    told = [line for line in text.splitlines() if "SECRET_PLACE" in line]
    assert told and all("***" in line for line in told), (
        "the server did tell its environment, with what is hidden"
    )
    assert [place for place, secret in SECRETS.items() if any(form in text for form in forms(secret))] == []
    assert [name for name, value in LEAKS.items() if value in text or name in text] == []
