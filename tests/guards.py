"""What no test may do: reach beyond loopback, or block the event loop inside our packages.

Both guards refuse on the spot and also remember what they refused, since the code under test turns many an
exception into an observation: the fixture in conftest.py then fails the test all the same.
"""

import ipaddress
import re
import socket
import sys
import traceback
from typing import Any, Final

import blockbuster.blockbuster as blockbuster_module
from blockbuster import BlockBuster, BlockingError

PACKAGES: Final = ("executor", "server", "tool_clients")
refused: Final[list[str]] = []

_PRIVATE_SETTINGS: Final = re.compile(
    r"LOOPWRIGHT_.*|.*_API_KEY|.*_API_BASE|.*_BASE_URL|.*_AUTH_TOKEN|AWS_.*|AZURE_.*|GOOGLE_.*|VERTEX.*|LITELLM_.*"
    r"|.*_PROXY",
    re.IGNORECASE,
)


class BeyondLoopback(RuntimeError):
    """A test tried to talk to another machine."""


class BlockedTheLoop(BlockingError):
    """A blocking call on the event loop's thread, from one of our packages."""

    def __init__(self, func: str) -> None:
        super().__init__(func)
        refused.append(f"blocking call to {func} on the event loop at {_where()}")


def is_private_setting(name: str) -> bool:
    """Whether an environment variable could steer a test to a real provider or to the developer's settings."""
    return _PRIVATE_SETTINGS.fullmatch(name) is not None


def watch_network() -> None:
    """Refuse every socket and every name look-up beyond loopback, in every thread, from now on.

    An audit hook sees what goes through C code and third-party clients too; it can't be taken out again.
    """
    sys.addaudithook(_refuse_beyond_loopback)


def watch_event_loop() -> BlockBuster:
    """A BlockBuster, active, that watches our own packages and records what it refuses."""
    # The wrappers look this name up when they raise: the one place to hear of a refusal that is swallowed.
    vars(blockbuster_module)["BlockingError"] = BlockedTheLoop
    watch = BlockBuster(scanned_modules=list(PACKAGES))
    watch.activate()
    # Logging writes to stderr from wherever it is called, in every program.
    for write in ("io.TextIOWrapper.write", "io.BufferedWriter.write"):
        watch.functions[write].can_block_in("logging/__init__.py", "emit")
    # On the event loop only where the pipe has said that it takes it without waiting (`_takes` there).
    watch.functions["io.BufferedWriter.write"].can_block_in("server/mcp_stdio.py", "_write")
    # One row by its key takes less of the event loop than the way to another thread does.
    for call in ("Connection.execute", "Cursor.fetchone"):
        watch.functions[f"sqlite3.{call}"].can_block_in("executor/reader.py", "one")
    # LiteLLM looks at small files of its own (certificates, lists) within a request, as we can't help.
    for function in watch.functions.values():
        function.can_block_in("litellm/main.py", "acompletion")
        function.can_block_in("litellm/litellm_core_utils/streaming_handler.py", "__anext__")
    return watch


def _refuse_beyond_loopback(event: str, args: tuple[Any, ...]) -> None:
    match event:
        case "socket.connect" | "socket.sendto" | "socket.sendmsg":
            address = args[1]
            # A path is a Unix socket; None is a connected one, which was looked at when it connected.
            host = address[0] if isinstance(address, tuple) and isinstance(address[0], str) else None
        case "socket.getaddrinfo" | "socket.gethostbyname" | "socket.gethostbyaddr":
            host = args[0].decode() if isinstance(args[0], bytes) else args[0]
        case _:
            return
    if host and not _is_here(host):
        refused.append(f"{event} to {host!r}")
        raise BeyondLoopback(f"tests talk to this machine only, not to {host!r} ({event})")


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return host.lower() == "localhost" or host == socket.gethostname()
    return address.is_loopback or address.is_unspecified


def _where() -> str:
    frames = [f for f in traceback.extract_stack() if f"{blockbuster_module.__file__}" != f.filename]
    ours = [f for f in frames if any(f"/{name}/" in f.filename.replace("\\", "/") for name in PACKAGES)]
    last = (ours or frames)[-1]
    return f"{last.filename}:{last.lineno}"
