"""The JSON Schema that an answer is constrained to in JSON mode: a union of calls and the final answer.

llama.cpp, vLLM, Ollama and LM Studio make grammars of such schemas, each of another part of JSON Schema. Written
here is only what all of them read alike: `type` (one), `properties`, `required`, `additionalProperties`, `items`,
`enum`, `const`, `anyOf`. What a grammar leaves open is checked when the call is made, as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from executor.plain_schema import Exotic, plain
from executor.tools import Tool

_TEXT: Final = {"type": "string"}
_ANY_OBJECT: Final = {"type": "object", "additionalProperties": True}
_FLAT: Final = [*({"type": kind} for kind in ("string", "number", "boolean", "null")), _ANY_OBJECT]
_ANY_ARRAY: Final = {"type": "array", "items": {"anyOf": _FLAT}}
# An empty schema is an object to llama.cpp, and a bare array an empty one to xgrammar.
_ANYTHING: Final = {"anyOf": [*_FLAT, _ANY_ARRAY]}


def answer_grammar(tools: Sequence[Tool], answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """What one answer may be: calls of these tools, or a final answer that meets the schema `answer` (None: text).

    `thought` comes first, so that the model has said why before it chooses between the two.
    """
    final = _step("answer", _TEXT if answer is None else _loose(answer, _ANYTHING))
    if not tools:
        return final
    calls = {"type": "array", "items": _one_of([_call(tool) for tool in tools])}
    # `type` beside the union: some servers want to read that the whole is an object.
    return {"type": "object", "anyOf": [_step("calls", calls), final]}


def _step(name: str, value: dict[str, Any]) -> dict[str, Any]:
    return _closed({"thought": _TEXT, name: value})


def _call(tool: Tool) -> dict[str, Any]:
    return _closed({"name": {"const": tool.name}, "arguments": _loose(tool.parameters_schema, _ANY_OBJECT)})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _loose(schema: Mapping[str, Any], otherwise: dict[str, Any]) -> dict[str, Any]:
    """A grammar that holds every value that the schema is meant to allow."""
    try:
        return _part(plain(schema))
    except Exotic:
        return otherwise


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    match part:
        case {"anyOf": branches}:
            return _one_of([_part(branch) for branch in branches])
        case {"const": value}:
            return {"const": value}
        case {"enum": values}:
            return {"enum": values}
        case {"type": "object"}:
            return _object(part)
        case {"type": "array"}:
            return {"type": "array", "items": _part(part["items"])} if part.get("items") else _ANY_ARRAY
        case {"type": kind}:
            return {"type": kind}
        case _:
            return _ANYTHING


def _object(part: Mapping[str, Any]) -> dict[str, Any]:
    """Closed unless it says otherwise: small models make up arguments where they can."""
    more = part.get("additionalProperties", not part["properties"])
    if not part["properties"] and more is True:
        return _ANY_OBJECT
    return {
        "type": "object",
        "properties": {name: _part(inner) for name, inner in part["properties"].items()},
        "required": part["required"],
        "additionalProperties": more if isinstance(more, bool) else _part(more),
    }


def _one_of(branches: list[dict[str, Any]]) -> dict[str, Any]:
    return branches[0] if len(branches) == 1 else {"anyOf": branches}
