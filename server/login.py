"""`loopwright login` and `logout`: a person's consent to use a server, and its end."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import Callable
from functools import partial

import filelock
from mcp.shared.auth import AuthorizationCodeResult

from executor.errors import LoopwrightError
from tool_clients.authorization import authorize
from tool_clients.config import Http, Server
from tool_clients.detached import detached
from tool_clients.logins import Login, Place, logins_folder, place_of, places_of
from tool_clients.oauth import Unauthorized
from tool_clients.renewal import revoked
from tool_clients.secrets import guarded_logs, secrets_of

from .compose import tool_config
from .console import printable, say
from .redirect import Redirect, Refused, redirect
from .settings import Settings, SettingsError

PATIENCE = 300.0
"""Seconds that a person has to log in."""


class LoginFailed(LoopwrightError):
    """Nobody was logged in; the text says why, and what to do."""

    code = "login_failed"


class LoginTimeout(LoginFailed):
    """Nobody came back from the authorization server in time."""

    code = "login_timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"Nobody came back from the login within {seconds:g} s: run it again, or give --timeout more. Without a "
            "browser on this machine, open the address elsewhere and paste here what its address bar says at the end."
        )


async def login(settings: Settings, name: str, *, browser: bool = True, patience: float = PATIENCE) -> int:
    """Have a person log in at the server of this name, and keep the login. Gives the exit code.

    Raises `SettingsError` for a server that no one logs in at, `LoginFailed`.
    """
    server = await asyncio.to_thread(_server, settings, name)
    transport = server.transport
    assert isinstance(transport, Http)
    secrets = await asyncio.to_thread(secrets_of, server)
    place = place_of(name, transport.url)
    await _kept(place.rehearse)
    try:
        async with redirect(transport.oauth.callback_port if transport.oauth else 0) as back:
            with guarded_logs(lambda: [secrets]):
                async with asyncio.timeout(patience):
                    made = await authorize(
                        server, redirect_uri=back.uri, consent=partial(_consent, back, browser=browser)
                    )
    except TimeoutError:
        raise LoginTimeout(patience) from None
    except Refused as error:
        raise LoginFailed(
            f"The authorization server of {name} let nobody in ({printable(str(error))}): agree to what it asks, or "
            "ask its operator for the right."
        ) from None
    except OSError as error:
        raise LoginFailed(
            f"No redirect can be received on 127.0.0.1 ({error}): free the port, or set another callback_port in the "
            'entry\'s "loopwright": {"oauth": …}.'
        ) from None
    except Unauthorized as error:
        raise LoginFailed(f"Server {name}: {printable(secrets.hide(str(error)))}.") from None
    if made is None:
        say(f"{name} needs no login: it lets us in as we are.")
        return 0
    await _kept(partial(place.replace, made))
    say(
        f"Logged in at {name} through {printable(made.issuer)}. Running servers of yours use it within seconds."
    )
    return 0


async def logout(settings: Settings, name: str) -> int:
    """Forget every login at servers of this name, and tell their authorization servers. Gives the exit code."""
    found = await asyncio.to_thread(lambda: list(places_of(name)))
    for place, known in found:
        told = await detached(partial(_end, place, known))
        what = (
            "ended there, and forgotten here"
            if told
            else "forgotten here; it may last there until it runs out"
        )
        say(f"The login at {name} ({printable(known.url)}) is {what}.")
    if not found:
        say(f"Nobody is logged in at {name}.")
    return 0


async def _kept(work: Callable[[], None]) -> None:
    """Do something where logins are kept. Raises `LoginFailed`."""
    try:
        await asyncio.to_thread(work)
    except (OSError, filelock.Timeout) as error:
        raise LoginFailed(
            f"A login cannot be kept in {printable(str(logins_folder()))} ({error}): make it a folder that you can write to."
        ) from None


def _end(place: Place, known: Login) -> bool:
    with place.lock:
        latest = place.read() or known
        place.remove()
    return revoked(latest)


def _server(settings: Settings, name: str) -> Server:
    """The entry that a person can log in at. Raises `SettingsError`."""
    config = tool_config(settings)
    for refused in config.refused:
        if refused.server == name:
            raise SettingsError(f"{refused}: mend the entry.")
    server = next((server for server in config.servers if server.name == name), None)
    if name in config.disabled:
        raise SettingsError(f'Server {name} is disabled in {config.path}: take "disabled" away to log in.')
    if server is None:
        known = ", ".join(s.name for s in config.servers if isinstance(s.transport, Http)) or "none"
        where = str(config.path) if config.path else "no mcp.json"
        raise SettingsError(
            f"There is no server {name!r} to log in at (in {where}: {known}): name one of these, or the file with --config."
        )
    match server.transport:
        case Http(headers=headers) if "authorization" in map(str.lower, headers):
            raise SettingsError(
                f"Server {name} has an Authorization header in its entry, which wins over a login: remove it to log in."
            )
        case Http(oauth=oauth) if oauth is not None and oauth.unattended:
            raise SettingsError(
                f"Server {name} gets its tokens by client credentials: nobody logs in. `loopwright tools` says how it is."
            )
        case Http():
            return server
        case _:
            raise SettingsError(
                f"Server {name} is a process of this machine: its keys go into the env of its entry."
            )


async def _consent(back: Redirect, page: str, *, browser: bool) -> AuthorizationCodeResult:
    """Show the consent page, and wait for the browser to come back or for its address to be pasted."""
    back.expect(page)
    say("To log in, open this address in a browser:\n")
    say(f"  {printable(page)}\n")
    say(
        "If the browser is on another machine, it will end at an address that it cannot open: paste that here."
    )
    if browser and _has_browser():
        _open(page)
    threading.Thread(
        target=_read_lines,
        args=(asyncio.get_running_loop(), partial(_paste, back)),
        name="loopwright pasted",
        daemon=True,
    ).start()
    return await back.result()


def _paste(back: Redirect, line: str) -> None:
    """Take a line from stdin for the address at which a browser elsewhere has ended."""
    if line.strip() and not back.take(line):
        say(
            "That is not where the login ends: the address begins with http://127.0.0.1 and has a state in it."
        )


def _has_browser() -> bool:
    """Whether a browser that we open would be seen by the person who asked for it."""
    if os.environ.get("BROWSER"):
        return True
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    return not sys.platform.startswith("linux") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def _open(page: str) -> None:
    # Some browsers are waited for: in a thread that nobody waits for.
    threading.Thread(target=webbrowser.open, args=(page,), name="loopwright browser", daemon=True).start()


def _read_lines(loop: asyncio.AbstractEventLoop, heard: Callable[[str], None]) -> None:
    # Not sys.stdin: the interpreter could not end while a thread holds its lock.
    rest = b""
    while True:
        try:
            typed = os.read(0, 65_536)
            *lines, rest = (rest + typed).split(b"\n")
            for line in lines if typed else [rest]:
                loop.call_soon_threadsafe(heard, line.decode("utf-8", "replace"))
        except (OSError, RuntimeError):  # the terminal is gone, or the event loop is closed
            return
        if not typed:
            return
