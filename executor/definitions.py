"""OpenAI function definitions, read strictly: a mistake is named, with its place and its cure.

Knows nothing of the callables behind them (registry.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider takes as the name of a function."""

_OUTER: Final = ("type", "function")
_INNER: Final = ("name", "description", "parameters", "strict")
_ELSEWHERE: Final = {"input_schema": "parameters", "inputSchema": "parameters"}
"""How Anthropic and MCP call a key, and how it is called here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One function as the model is told of it; None: the definition does not say."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None


def definition(given: Any, place: str) -> Definition:
    """Read `{"type": "function", "function": {…}}`, or the inner object alone.

    Raises `TypeError` for what is no object, and `ValueError` for one that says too little, too much or
    something else, naming `place`.
    """
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{place} is of type {type(given).__name__}: give an OpenAI function definition, "
            '{"name": …, "description": …, "parameters": {…}}.'
        )
    if given.get("type", "function") != "function":
        raise ValueError(f"{place} has the type {given['type']!r}: only functions can be defined here.")
    inner = given.get("function", given)
    if inner is not given:
        _check_keys(given, _OUTER, place)
        return definition(inner, f"{place}['function']")
    name = given.get("name")
    where = f"{place} ({name})" if isinstance(name, str) else place
    _check_keys(given, ("type", *_INNER), where)
    name = checked_name(name, place)
    description = given.get("description")
    if not isinstance(description, str | None):
        raise TypeError(f"The description of {where} is of type {type(description).__name__}: give a text.")
    return Definition(
        name=name,
        description=description,
        parameters=_parameters(given.get("parameters"), where),
    )


def checked_name(name: Any, place: str) -> str:
    """The name, if every provider takes it. Raises `ValueError` naming `place`."""
    if name is None:
        raise ValueError(f"{place} has no name: say which function of tool_registry it describes.")
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ValueError(f"{place} has the name {name!r}: providers take 1 to 64 of A-Z a-z 0-9 _ and -.")
    return name


def check_schema(parameters: Mapping[str, Any], place: str) -> None:
    """Raise `ValueError` for what is no JSON Schema. Some 0.6 ms: not for every turn."""
    # here: a server that starts has no use for it, and an assistant waits
    from jsonschema import Draft7Validator, Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        if not Draft7Validator(Draft7Validator.META_SCHEMA).is_valid(parameters):  # an older one may be meant
            raise ValueError(
                f"The parameters of {place} are no JSON Schema: {error.message} at {error.json_path}."
            ) from None
    except (OverflowError, RecursionError) as error:  # a pattern with too large a number, or all too deep
        raise ValueError(f"The parameters of {place} cannot be used: {error}.") from None


def likely(word: str, words: Collection[str]) -> str:
    """A sentence that names the word that was probably meant, or all that there are."""
    close = get_close_matches(word, words, 1)
    return f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(words) or 'none'}."


def _check_keys(given: Mapping[str, Any], known: Collection[str], place: str) -> None:
    for key in given:
        if key in known:
            continue
        if key in _ELSEWHERE:
            raise ValueError(f"{place} has the key {key!r}: call it {_ELSEWHERE[key]!r}, as OpenAI does.")
        raise ValueError(f"{place} has a key that means nothing here, {key!r}. {likely(str(key), known)}")


def _parameters(given: Any, place: str) -> Mapping[str, Any] | None:
    if not given and isinstance(given, Mapping | None):
        return None
    if not isinstance(given, Mapping) or given.get("type") != "object":
        raise ValueError(
            f"The parameters of {place} are not the JSON Schema of an object: give "
            '{"type": "object", "properties": {…}, "required": […]}.'
        )
    return given
