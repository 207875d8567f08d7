"""Logins at downstream servers, each in a file that only its user can read: every process finds it there."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeGuard

from filelock import BaseFileLock, FileLock
from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, ValidationError

logger = logging.getLogger("loopwright.tools")

LOCK_TIMEOUT = 30.0
"""Seconds to wait for another process that renews the same login; it gives up before."""

_RENAMES = 20 if os.name == "nt" else 1
_ROOM = 16 * 1024


def can_be_sent(token: Any) -> TypeGuard[str]:
    """Whether a token is made of the letters that a header, or a form, can carry (RFC 6749, appendix A)."""
    return isinstance(token, str) and token.isascii() and token.isprintable() and bool(token.strip())


class Login(BaseModel):
    """What a person's login at one server gave us, and where it is renewed. Times are Unix seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    server: str
    url: str
    """The server's address as it may be shown, without what is secret in it."""
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None = None
    resource: str | None = None
    client_id: str
    client_secret: str | None = None
    auth_method: str | None = None
    access_token: str
    refresh_token: str | None = None
    scope: str | None = None
    renew_at: float | None = None
    """From when on the token is renewed before it is used: shortly before it runs out."""

    def is_due(self, now: float) -> bool:
        """Whether it can and should be renewed before it is used."""
        return self.refresh_token is not None and self.renew_at is not None and self.renew_at <= now

    @property
    def secrets(self) -> list[str]:
        """What of it is nobody's business."""
        return [secret for secret in (self.access_token, self.refresh_token, self.client_secret) if secret]


class Place:
    """Where the login at one server, at one address, is kept.

    The file's name stands for both: after a change of the address nothing is found, so that no token goes
    where it was not given for. All of this blocks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def lock(self) -> BaseFileLock:
        """Held by whoever changes the login: two processes that spent one refresh token would both lose it."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return FileLock(self._path.with_suffix(".lock"), timeout=LOCK_TIMEOUT, mode=0o600)

    def stamp(self) -> tuple[int, ...] | None:
        """A value that changes with the file; None: there is none."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def read(self) -> Login | None:
        """The login that is kept here. One that cannot be understood counts as none. Raises `OSError`."""
        try:
            return Login.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:  # its text would quote the tokens
            logger.warning("the login in %s cannot be read: log in anew", self._path)
            return None

    def save(self, login: Login) -> None:
        """Put the login in the place of the one before: a reader sees the one or the other, never half of it."""
        with self._written(login.model_dump_json(exclude_none=True).encode()) as made:
            _put(made, self._path)

    def replace(self, login: Login) -> None:
        """Save a new login, after whoever renews the one before. Raises `OSError`, `filelock.Timeout`."""
        with self.lock:
            self.save(login)

    def rehearse(self) -> None:
        """Find out, before a token is spent or a person asked, whether a login can be kept. Raises `OSError`."""
        with self._written(bytes(_ROOM)):
            pass

    @contextmanager
    def _written(self, content: bytes) -> Generator[Path]:
        """A file beside ours with this in it, gone after the body unless that has moved it."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made for its owner alone on every system: by its mode, or by the rights of the folder it is in.
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=".login-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _put(made: Path, path: Path) -> None:
    """Rename at once. Windows refuses it while somebody reads the old file, which takes an instant."""
    for _ in range(_RENAMES - 1):
        try:
            made.replace(path)
        except PermissionError:
            time.sleep(0.05)
        else:
            return
    made.replace(path)


def place_of(server: str, url: str, *, folder: Path | None = None) -> Place:
    """Where the login at this server, at this address, is kept."""
    name = hashlib.sha256(f"{server}\n{url}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return Place((folder or logins_folder()) / f"{name}.json")


def places_of(server: str, *, folder: Path | None = None) -> Iterator[tuple[Place, Login]]:
    """Every login at a server of this name, also at addresses that it had before."""
    for path in sorted((folder or logins_folder()).glob("*.json")):
        with suppress(OSError):
            place = Place(path)
            if (login := place.read()) is not None and login.server == server:
                yield place, login


def logins_folder() -> Path:
    """Where all logins of this user are."""
    return user_data_path("loopwright", appauthor=False) / "logins"
