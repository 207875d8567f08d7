"""A login renewed at its authorization server: once, whoever asks, in whichever process."""

from __future__ import annotations

import base64
import math
import time
from typing import Any
from urllib.parse import quote, urlsplit

import filelock
import httpx2

from .logins import Login, Place, can_be_sent

ANSWER_TIME = 20.0
"""Seconds within which an authorization server has answered."""

MAX_ANSWER_BYTES = 256 * 1024
_EARLY = 30.0
_LATER = ("temporarily_unavailable", "server_error", "slow_down")
_OWN_WORD = (200, 400, 401)
"""How an authorization server says no: as RFC 6749 has it, or as one that says everything with 200. Any other
status comes as well from what stands in front of it, with an `error` of its own (429, 403 of a firewall)."""


class Unrenewed(Exception):
    """A login could not be renewed now, and may well be later; the text says why, without anything secret."""


def due_at(expires_in: Any, now: float) -> float | None:
    """When a token is to be renewed: half a minute before it runs out, a tenth of its life before for a short one.

    None for a life that makes no sense, as for one that nobody told: then the server says when it is over.
    """
    try:
        life = float(expires_in)
    except (TypeError, ValueError, OverflowError):
        return None
    return now + life - min(_EARLY, life / 10) if 0 < life < math.inf else None


def renewed(place: Place, token: str) -> Login | None:
    """The login with another token than this one; None: a person has to log in again. Blocks.

    Whoever comes first renews it, all others find it renewed. Raises `Unrenewed`.
    """
    try:
        with place.lock:
            login = place.read()
            if login is None or login.access_token != token:
                return login
            if login.refresh_token is None:
                return None
            place.rehearse()  # what is spent and cannot be kept would be lost
            return _renew(place, login)
    except (OSError, filelock.Timeout) as error:
        raise Unrenewed(f"its login cannot be renewed here: {error}") from None


def _renew(place: Place, login: Login) -> Login | None:
    assert login.refresh_token is not None
    form = {"grant_type": "refresh_token", "refresh_token": login.refresh_token}
    if login.resource:
        form["resource"] = login.resource
    response = _asked(login.token_endpoint, login, form)
    if _is_final(response):
        place.remove()  # it is spent or revoked: nobody need try it again
        return None
    answer = _said(response)
    token = answer.get("access_token")
    if response.status_code != 200 or not can_be_sent(token):
        raise Unrenewed(
            f"{_host(login.token_endpoint)} answered {response.status_code} without a token that can be used"
        )
    # Nothing else in it can make it unusable: the refresh token that it answers is spent.
    refresh_token, scope = answer.get("refresh_token"), answer.get("scope")
    fresh = login.model_copy(
        update={
            "access_token": token,
            "refresh_token": refresh_token if can_be_sent(refresh_token) else login.refresh_token,
            "scope": scope if can_be_sent(scope) else login.scope,
            "renew_at": due_at(answer.get("expires_in"), time.time()),
        }
    )
    place.save(fresh)
    return fresh


def _said(response: httpx2.Response) -> dict[str, Any]:
    """The object that the answer is; an empty one for anything else."""
    try:
        answer: Any = response.json()
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _is_final(response: httpx2.Response) -> bool:
    """Whether the authorization server itself, and not something on the way to it, says no (RFC 6749 §5.2)."""
    error = _said(response).get("error")
    return isinstance(error, str) and error not in _LATER and response.status_code in _OWN_WORD


def revoked(login: Login) -> bool:
    """Whether the authorization server was told that the login has ended (RFC 7009), and agreed. Blocks."""
    if login.revocation_endpoint is None:
        return False
    try:
        response = _asked(
            login.revocation_endpoint, login, {"token": login.refresh_token or login.access_token}
        )
    except Unrenewed:
        return False
    return response.status_code == 200


def _asked(url: str, login: Login, form: dict[str, str]) -> httpx2.Response:
    """The answer, whole but bounded in size and time; a redirect is never followed. Raises `Unrenewed`."""
    form, headers = _as_client(login, form)
    deadline = time.monotonic() + ANSWER_TIME
    body = bytearray()
    try:
        with (
            httpx2.Client(timeout=ANSWER_TIME / 2, follow_redirects=False) as http,
            http.stream("POST", url, data=form, headers=headers) as response,
        ):
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES or time.monotonic() > deadline:
                    raise Unrenewed(f"{_host(url)} does not come to the end of its answer")
            return httpx2.Response(response.status_code, content=bytes(body))
    except httpx2.HTTPError as error:
        why = str(error) or type(error).__name__
        raise Unrenewed(f"{_host(url)} cannot be reached to renew its login: {why}") from None


def _as_client(login: Login, form: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The request as the client that we are registered as (RFC 6749 §2.3.1)."""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    if login.client_secret and login.auth_method == "client_secret_basic":
        pair = f"{quote(login.client_id, safe='')}:{quote(login.client_secret, safe='')}"
        return form, {**headers, "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    form = {**form, "client_id": login.client_id}
    if login.client_secret and login.auth_method == "client_secret_post":
        form["client_secret"] = login.client_secret
    return form, headers


def _host(url: str) -> str:
    return urlsplit(url).netloc
