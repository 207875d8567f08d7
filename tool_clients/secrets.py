"""What of a server's configuration is nobody's business, kept out of all that comes from its connection."""

from __future__ import annotations

import base64
import binascii
import logging
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from .config import Http, Server, Stdio
from .hiding import Secrets

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)

_PLAIN = re.compile(r"[a-z]{1,12}|[a-z]{2}(-[a-z]+){1,2}-\d|\d+(\.\d+)*|https?://[^@?#]*", re.ASCII)
"""Settings that many texts hold by chance (`localhost`, `production`, `eu-west-1`, `3.11.9`, a plain address)."""

_OTHERS = ("mcp", "client", "httpx2", "httpcore2")
_LOG_WINDOW = 60.0
_LOGS_PER_WINDOW = 10
_LOG_CHARACTERS = 500


def secrets_of(server: Server) -> Secrets:
    """The values of a server's headers, environment, URL query and user information, and of its `${VAR}`s
    and arguments that are called secret.

    Left out, unless the name says secret: the path of something that is there, and plain settings. Hiding
    those would garble what tools say, and hide nothing.
    """
    named = dict(server.variables)
    certain: list[str] = []
    match server.transport:
        case Stdio(args=args, env=env):
            certain += _of_arguments(args)
            named = {**named, **{f"env {name}": value for name, value in env.items()}}
        case Http(url=url, headers=headers, oauth=oauth):
            certain += _of_url(url)
            certain += filter(None, (oauth.client_secret, oauth.private_key)) if oauth else []
            for value in headers.values():
                certain += _of_header(value)
    inside = [part for value in named.values() if "://" in value for part in _of_url(value)]
    likely = [value for name, value in named.items() if _SECRET_NAME.search(name) or not _is_plain(value)]
    return Secrets([*certain, *inside, *likely])


def _of_arguments(args: Sequence[str]) -> list[str]:
    """What follows `--token` and the like, as the next argument or after `=`."""
    following = [value for name, value in pairwise(args) if name[:1] == "-" and _SECRET_NAME.search(name)]
    split = [arg.partition("=") for arg in args]
    urls = [part for arg in args if "://" in arg for part in _of_url(arg)]
    return [*following, *(value for name, _, value in split if _SECRET_NAME.search(name)), *urls]


def _is_plain(value: str) -> bool:
    return bool(_PLAIN.fullmatch(value)) or _is_there(value)


def _is_there(value: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(value).is_absolute() and Path(value).exists()
    return False


def _of_url(url: str) -> list[str]:
    with suppress(ValueError):
        parts = urlsplit(url)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        raw = [user, password, *(pair.partition("=")[2] for pair in parts.query.split("&")), parts.fragment]
        pair = f"{unquote(user)}:{unquote(password)}"
        queried = [value for _, value in parse_qsl(parts.query)]
        return [*raw, *map(unquote, raw), *queried, *([pair] if user and password else [])]
    return []


def _of_header(value: str) -> list[str]:
    """The value, what follows its scheme, and what is encoded in that."""
    scheme, _, credentials = value.strip().partition(" ")
    found = [value, credentials.strip()]
    if scheme.lower() == "basic":
        with suppress(binascii.Error, UnicodeDecodeError):
            pair = base64.b64decode(credentials, validate=True).decode()
            found += [pair, *pair.split(":", 1)]
    return found


@contextmanager
def guarded_logs(secrets: Callable[[], Sequence[Secrets]]) -> Generator[None]:
    """While it is open, nothing secret, no traceback and no flood is logged by what connections are made of."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in _OTHERS]
    loggers = [logging.getLogger(name) for name in names]
    others, ours = _Quiet(secrets), _Hiding(secrets)
    own = logging.getLogger("loopwright.tools")
    own.addFilter(ours)
    for logger in loggers:
        logger.addFilter(others)
    try:
        yield
    finally:
        own.removeFilter(ours)
        for logger in loggers:
            logger.removeFilter(others)


class _Hiding(logging.Filter):
    """Hides in each record what is secret, in its traceback too."""

    def __init__(self, secrets: Callable[[], Sequence[Secrets]]) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._hide(record.getMessage()), None
        if record.exc_info:
            record.exc_text = self._hide(logging.Formatter().formatException(record.exc_info))
            record.exc_info = None
        return True

    def _hide(self, text: str) -> str:
        for secrets in self._secrets():
            text = secrets.hide(text)
        return text


class _Quiet(_Hiding):
    """Lets a place of another library speak ten times a minute, one line each, without what a server sent."""

    def __init__(self, secrets: Callable[[], Sequence[Secrets]]) -> None:
        super().__init__(secrets)
        self._said: dict[tuple[str, int], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        said = self._said.setdefault((record.name, record.lineno), [])
        said[:] = [at for at in said if now - at < _LOG_WINDOW]
        if len(said) >= _LOGS_PER_WINDOW:
            return False
        said.append(now)
        record.exc_info = record.exc_text = None  # a traceback quotes the message that could not be read
        super().filter(record)
        record.msg = record.msg[:_LOG_CHARACTERS]
        return True
