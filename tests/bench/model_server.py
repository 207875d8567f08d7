"""A model that answers at once: OpenAI chat completions on loopback, scripted by the prompt itself.

    python -m tests.bench.model_server        prints its URL, serves until stdin ends

A prompt holds `turns=10 calls=1 delay=0`: ten answers that each call the tool `lookup` once (`calls` times), then
the answer `done`; each after `delay` milliseconds. How many there were is counted in the messages behind that
prompt. The body is never parsed and the answer is put together by hand, so that it costs next to nothing.
With `stamp` in the prompt each answer's text is the time at which its last byte was sent (Unix seconds).
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_PLAN: Final = re.compile(rb"turns=(\d+) calls=(\d+) delay=(\d+)( stamp)?")
_ANSWERED: Final = re.compile(rb'"role": ?"assistant"')


def plan(turns: int, calls: int = 1, delay_ms: int = 0, *, stamp: bool = False) -> str:
    """The prompt that makes the model act so."""
    return f"turns={turns} calls={calls} delay={delay_ms}{' stamp' if stamp else ''}: look the items up, one by one."


class Model(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._buffer, 0, end + 2)
        if length is None:
            raise ValueError("a request without a length")
        whole = end + 4 + int(length[1])
        if len(self._buffer) < whole:
            return
        body = bytes(self._buffer[end + 4 : whole])
        del self._buffer[:whole]
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        found = None
        for found in _PLAN.finditer(body):  # noqa: B007 - the last one counts: a session holds several
            pass
        if found is None:
            raise ValueError("a prompt without a plan")
        turn = sum(1 for _ in _ANSWERED.finditer(body, found.end()))
        turns, calls, delay = (int(number) for number in found.groups()[:3])
        calls = calls if turn < turns else 0
        if delay:
            asyncio.get_running_loop().call_later(delay / 1000, self._send, turn, calls, bool(found[4]))
        else:
            self._send(turn, calls, bool(found[4]))

    def _send(self, turn: int, calls: int, stamp: bool) -> None:
        if not self._transport.is_closing():
            self._transport.write(completion(turn, calls, stamp=stamp))


def completion(turn: int, calls: int, *, stamp: bool) -> bytes:
    """One answer, head and body."""
    text = f'"at {time.time():.6f}"' if stamp else '"done"' if not calls else "null"
    asked = ",".join(
        f'{{"id":"call_{turn}_{n}","type":"function","function":'
        f'{{"name":"lookup","arguments":"{{\\"item\\":\\"part {turn}-{n}\\"}}"}}}}'
        for n in range(calls)
    )
    tools = f',"tool_calls":[{asked}]' if calls else ""
    body = (
        f'{{"id":"chatcmpl-{turn}","object":"chat.completion","created":1700000000,"model":"gpt-4o-2024-08-06",'
        f'"choices":[{{"index":0,"message":{{"role":"assistant","content":{text}{tools}}},"logprobs":null,'
        f'"finish_reason":"{"tool_calls" if calls else "stop"}"}}],"usage":{{"prompt_tokens":{100 + 80 * turn},'
        f'"completion_tokens":20,"total_tokens":{120 + 80 * turn}}}}}'
    ).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


async def main() -> None:
    """Serve until whoever started us closes our stdin."""
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
