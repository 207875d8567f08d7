"""Tools as a prompt tells of them: one line each, as a function, and a line for each parameter that needs one.

    - search(pattern: string, in?: "names" | "texts", limit?: integer): Finds files.
      pattern: a glob
      limit: default 20, minimum 1

About a third of the tokens of the same JSON Schema, and every model has read such lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from executor.plain_schema import FACTS, Exotic, plain
from executor.tools import Tool

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def described(tool: Tool) -> str:
    """The tool, its parameters and what is said of them. A schema that no signature can tell stands there as it is."""
    about = " ".join(tool.description.split())
    told = f": {about}" if about else ""
    try:
        schema = plain(tool.parameters_schema)
    except Exotic:
        return f"- {tool.name}(arguments){told}\n  arguments: JSON that meets {_json(dict(tool.parameters_schema))}"
    return "\n".join(
        [f"- {tool.name}({_parameters(schema)}){told}", *(f"  {line}" for line in _remarks(schema, ""))]
    )


def _parameters(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    return ", ".join(
        f"{_name(name)}{'' if name in required else '?'}: {_type(part)}"
        for name, part in schema.get("properties", {}).items()
    )


def _type(part: Mapping[str, Any]) -> str:
    match part:
        case {"anyOf": branches}:
            return " | ".join(dict.fromkeys(_type(branch) for branch in branches))
        case {"const": value}:
            return _json(value)
        case {"enum": values}:
            return " | ".join(map(_json, values))
        case {"type": "object"}:
            inside = _parameters(part)
            return f"{{{inside}}}" if inside else "object"
        case {"type": "array"}:
            of = _type(part["items"]) if part.get("items") else "any"
            return f"({of})[]" if " | " in of else f"{of}[]"
        case {"type": str(kind)}:
            return kind
        case _:
            return "any"


def _remarks(part: Mapping[str, Any], path: str) -> Iterator[str]:
    """What is said of each parameter, the inner ones by their path: `where.city: …`, `lines[].text: …`."""
    for name, inner in part.get("properties", {}).items():
        here = f"{path}{_name(name)}"
        if said := _said(inner):
            yield f"{here}: {said}"
        yield from _inner_remarks(inner, here)


def _inner_remarks(part: Mapping[str, Any], here: str) -> Iterator[str]:
    yield from _remarks(part, f"{here}.")
    if items := part.get("items"):
        yield from _inner_remarks(items, f"{here}[]")
    for branch in part.get("anyOf", ()):
        yield from _inner_remarks(branch, here)


def _said(part: Mapping[str, Any]) -> str:
    about = " ".join(str(part.get("description", "")).split())
    facts = ", ".join(f"{key} {_json(part[key])}" for key in FACTS if key in part)
    return f"{about} ({facts})" if about and facts else about or facts


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else _json(name)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
