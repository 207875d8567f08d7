"""A tool's JSON Schema said plainly: references expanded, unions as `anyOf`, one type each; or not at all.

What is left is what every grammar of a local model server takes, and what fits a one-line signature. Nothing is
ever fetched, and a schema that grows without end when it is expanded is given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

MAX_PARTS: Final = 500
MAX_LEVELS: Final = 32
"""Parts of one schema, its references expanded, and how deep one may stand in another."""

FACTS: Final = (
    "default",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)
"""What a value must be like beside its type: told to the model, left out of grammars."""

_EXOTIC: Final = frozenset(
    (
        "not",
        "if",
        "then",
        "else",
        "patternProperties",
        "propertyNames",
        "dependentSchemas",
        "dependentRequired",
        "dependencies",
        "minProperties",
        "maxProperties",
        "prefixItems",
        "contains",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$dynamicRef",
        "$recursiveRef",
    )
)
_SHAPE: Final = frozenset(
    ("type", "properties", "required", "items", "enum", "const", "additionalProperties")
)
_SCALARS: Final = frozenset(("string", "integer", "number", "boolean", "null"))


class Exotic(Exception):
    """The schema cannot be said plainly."""


def plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema in plain keywords, each part with what is said of it (`description`, `FACTS`). Raises `Exotic`."""
    return _Expansion(schema).part(schema, ())


class _Expansion:
    """One schema being expanded."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._parts = 0
        self._level = 0

    def part(self, schema: Any, within: tuple[str, ...]) -> dict[str, Any]:
        """A part of the schema, said plainly. `within`: the references that led there."""
        self._parts += 1
        self._level += 1
        if self._parts > MAX_PARTS or self._level > MAX_LEVELS:
            raise Exotic
        said = self._part(schema, within)
        self._level -= 1
        return said

    def _part(self, schema: Any, within: tuple[str, ...]) -> dict[str, Any]:
        if schema is True:
            return {}
        if not isinstance(schema, Mapping) or _EXOTIC & schema.keys():
            raise Exotic
        if "$ref" in schema:
            return self._referred(schema, within)
        if "allOf" in schema:
            return self._one_of_all(schema, within)
        said = {key: schema[key] for key in ("description", *FACTS) if key in schema}
        if (union := schema.get("anyOf", schema.get("oneOf"))) is not None:
            if (_SHAPE - {"type"}) & schema.keys() or ("anyOf" in schema and "oneOf" in schema):
                raise Exotic
            return said | self._union(union, within)
        kind = schema.get("type")
        if isinstance(kind, list) and not {"const", "enum"} & schema.keys():
            return said | self._union([{**schema, "type": one} for one in kind], within, told=said)
        return said | self._shape(schema, kind, within)

    def _referred(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> dict[str, Any]:
        reference = schema["$ref"]
        if reference in within or not isinstance(reference, str) or not reference.startswith("#"):
            raise Exotic
        beside = {key: value for key, value in schema.items() if key not in ("$ref", "$defs", "definitions")}
        target = self._at(reference)
        if target is True:
            target = {}
        if not isinstance(target, Mapping):
            raise Exotic
        return self.part({**target, **beside}, (*within, reference))

    def _at(self, reference: str) -> Any:
        found: Any = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                raise Exotic
            found = found[key]
        return found

    def _one_of_all(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> dict[str, Any]:
        """`allOf` around one part is a way to write something beside a reference."""
        match schema["allOf"]:
            case [Mapping() as only]:
                beside = {key: value for key, value in schema.items() if key != "allOf"}
                if _SHAPE & beside.keys():
                    raise Exotic
                return self.part({**only, **beside}, within)
            case _:
                raise Exotic

    def _union(self, branches: Any, within: tuple[str, ...], told: Iterable[str] = ()) -> dict[str, Any]:
        """`told`: keys that are said of the whole union, and not again of each branch."""
        if not isinstance(branches, list) or not branches:
            raise Exotic
        parts = [self.part(branch, within) for branch in branches]
        kept = [{key: value for key, value in part.items() if key not in told} for part in parts]
        return kept[0] if len(kept) == 1 else {"anyOf": kept}

    def _shape(self, schema: Mapping[str, Any], kind: Any, within: tuple[str, ...]) -> dict[str, Any]:
        if "const" in schema or "enum" in schema:
            return _literals(schema)
        if kind is None:
            kind = "object" if "properties" in schema else "array" if "items" in schema else None
        match kind:
            case None:
                return {}
            case "object":
                return self._object(schema, within)
            case "array":
                items = schema.get("items")
                return {"type": "array"} | ({} if items is None else {"items": self.part(items, within)})
            case str() if kind in _SCALARS:
                return {"type": kind}
            case _:
                raise Exotic

    def _object(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        more = schema.get("additionalProperties")
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise Exotic
        if not all(isinstance(name, str) for name in required):
            raise Exotic
        named = {str(name): self.part(part, within) for name, part in properties.items()}
        named |= {name: {} for name in required if name not in named}
        made: dict[str, Any] = {"type": "object", "properties": named, "required": [*required]}
        if more is not None:
            made["additionalProperties"] = more if isinstance(more, bool) else self.part(more, within)
        return made


def _literals(schema: Mapping[str, Any]) -> dict[str, Any]:
    values = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(values, list) or not values:
        raise Exotic
    if not all(value is None or isinstance(value, str | int | float) for value in values):
        raise Exotic
    return {"const": values[0]} if len(values) == 1 else {"enum": values}
