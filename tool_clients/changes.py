"""What a new configuration changes: which servers are begun, restarted, left, and which notice nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .config import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The names of servers, by what becomes of them. `remarked`: other rules for a connection that stays."""

    added: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    remarked: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


def changes(before: Iterable[Server], after: Iterable[Server]) -> Changes:
    """What becomes of each server when those of `after` take the place of those of `before`."""
    old = {server.name: server for server in before}
    new = {server.name: server for server in after}
    both = [(old[name], new[name]) for name in new if name in old]
    moved = {now.name for was, now in both if was.transport != now.transport}
    remarked = {now.name for was, now in both if was.rules != now.rules} - moved
    return Changes(
        added=tuple(name for name in new if name not in old),
        restarted=tuple(name for name in new if name in moved),
        remarked=tuple(name for name in new if name in remarked),
        removed=tuple(name for name in old if name not in new),
        unchanged=tuple(now.name for _, now in both if now.name not in moved | remarked),
    )
