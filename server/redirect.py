"""The address to which an authorization server sends a person's browser back (RFC 8252 §7.3)."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import compare_digest
from urllib.parse import parse_qs, urlsplit

from mcp.shared.auth import AuthorizationCodeResult

PATH = "/callback"
_LINE_TIMEOUT = 10.0
_LONGEST_REQUEST = 16 * 1024


class Refused(Exception):
    """The authorization server sent the browser back without a code; the text is its own word."""


class Redirect:
    """Waits for one redirect, over HTTP or pasted: the first with the expected `state` counts, no other does.

    Any page that the browser shows can call this address; only the authorization server knows the state.
    """

    def __init__(self, port: int) -> None:
        self.uri = f"http://127.0.0.1:{port}{PATH}"
        self._state: str | None = None
        self._result: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    def expect(self, page: str) -> None:
        """Take redirects from now on, with the state that the address of the consent page has."""
        self._state = _query(page).get("state")

    async def result(self) -> AuthorizationCodeResult:
        """What the browser, or the person, brings back. Raises `Refused`."""
        return await self._result

    def take(self, address: str) -> bool:
        """Whether this is the address that we wait for."""
        found = _query(address)
        state = found.get("state")
        if self._state is None or state is None or not compare_digest(state.encode(), self._state.encode()):
            return False
        if self._result.done():
            return True
        if "code" in found:
            self._result.set_result(
                AuthorizationCodeResult(code=found["code"], state=state, iss=found.get("iss"))
            )
        else:
            why = [found[name] for name in ("error", "error_description") if name in found]
            self._result.set_exception(Refused(": ".join(why) or "it gave no code"))
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_LINE_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # whatever it was, it was no browser on its way back
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.decode("latin-1").partition(" ")
        target = rest.partition(" ")[0]
        if method != "GET" or target.partition("?")[0] != PATH:
            return _page("404 Not Found", "There is nothing here.")
        if not self.take(target):
            return _page(
                "400 Bad Request", "This is not the login that Loopwright waits for: start it again."
            )
        if self._result.done() and self._result.exception() is not None:
            return _page("200 OK", f"Not logged in: {self._result.exception()}. You can close this window.")
        return _page("200 OK", "Logged in. You can close this window.")


@asynccontextmanager
async def redirect(port: int = 0) -> AsyncIterator[Redirect]:
    """Listen on 127.0.0.1, on a free port unless one is given. Raises `OSError`."""
    waiting: list[Redirect] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await waiting[0]._serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=_LONGEST_REQUEST)
    async with server:
        waiting.append(Redirect(server.sockets[0].getsockname()[1]))
        yield waiting[0]


def _query(address: str) -> dict[str, str]:
    """The parameters of an address; of one that comes twice, none."""
    try:
        found = parse_qs(urlsplit(address.strip()).query)
    except ValueError:
        return {}
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _page(status: str, text: str) -> bytes:
    body = f"<!doctype html><meta charset=utf-8><title>Loopwright</title><p>{html.escape(text)}".encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
