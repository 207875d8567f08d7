"""The names under which downstream tools are offered: `<server>__<tool>`."""

from __future__ import annotations

import hashlib
import re

MAX_NAME = 64
_SEPARATOR = "__"
_HASH_LENGTH = 8


def plain_name(server: str, tool: str) -> str:
    """The name that says both; it may not be fit to be offered."""
    return f"{server}{_SEPARATOR}{tool}"


def offered_name(server: str, tool: str) -> str:
    """The name of a tool for the model: at most 64 of `[A-Za-z0-9_-]`.

    It depends on nothing but the two names, so it is the same in every order of start and after every
    restart. A name that cleaning or cutting changed, or that another pair could have given too, carries a
    hash of the pair.
    """
    plain = plain_name(server, tool)
    cleaned = re.sub(r"[^A-Za-z0-9_-]", "_", plain)
    splits_only_here = plain.find(_SEPARATOR) == len(server)  # else a__b + c and a + b__c would be one name
    seems_hashed = re.search(
        f"_[0-9a-f]{{{_HASH_LENGTH}}}$", plain
    )  # else a name could be made to hide another
    if cleaned == plain and splits_only_here and not seems_hashed and len(plain) <= MAX_NAME:
        return plain
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{cleaned[: MAX_NAME - _HASH_LENGTH - 1]}_{digest}"
