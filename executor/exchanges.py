"""A POST and its whole answer, through `aiohttp` itself.

With `httpx2` in front the same exchange takes twice the CPU. Requests and exceptions are `httpx2`'s all the same, since
that is what the SDKs and `failures` know. It follows no redirects and knows no proxies: those are `httpx2`'s to do.
"""

from __future__ import annotations

import ssl

import aiohttp
import httpx2

IDLE_SECONDS = 5.0
"""How long a connection is kept for the next request; httpx2's own measure."""


class Exchanges:
    """Posts over connections of its own, any number at once, in one event loop. Close it when done."""

    def __init__(self, trust: ssl.SSLContext) -> None:
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, request: httpx2.Request, headers: dict[str, str], body: bytes
    ) -> bytes | httpx2.Response:
        """The content of a plain answer; the whole of any other, which is for httpx2 to read.

        `request` says where to and how long, and stands in exceptions (httpx2's); `headers` are its, ready to send.
        """
        time = request.extensions["timeout"]
        limits = aiohttp.ClientTimeout(
            connect=time["pool"], sock_connect=time["connect"], sock_read=time["read"]
        )
        try:
            async with self._opened().post(
                str(request.url), headers=headers, data=body, allow_redirects=False, timeout=limits
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _in_httpx2s_words(error, request) from error
        if answer.status == 200 and "Content-Encoding" not in answer.headers:
            return content  # making a response of it takes a third of all this
        return httpx2.Response(answer.status, headers=answer.raw_headers, content=content, request=request)

    async def aclose(self) -> None:
        """Close every connection, also those in use."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:  # made here, since it belongs to the event loop that it is made in
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._trust, keepalive_timeout=IDLE_SECONDS),
                cookie_jar=aiohttp.CookieJar(
                    unsafe=True
                ),  # as httpx2 does: also of servers that have no name
                auto_decompress=False,
            )
        return self._session


def _in_httpx2s_words(error: Exception, request: httpx2.Request) -> httpx2.RequestError:
    match error:
        case TimeoutError():  # of connecting, or of reading
            kind: type[httpx2.RequestError] = httpx2.TimeoutException
        case aiohttp.ClientConnectorError():
            kind = httpx2.ConnectError
        case aiohttp.InvalidURL():
            kind = httpx2.UnsupportedProtocol
        case aiohttp.ClientResponseError():  # no HTTP, or more of it than is sound
            kind = httpx2.RemoteProtocolError
        case _:
            kind = httpx2.ReadError
    return kind(str(error), request=request)
