"""What an answer is held to, and how tools are told: plain enough for every local server, true to each schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from executor.grammar import answer_grammar
from executor.json_form import JsonForm, instructions
from executor.plain_schema import Exotic, plain
from executor.signatures import described
from executor.tools import Tool
from tests.json_mode import called, closed
from tests.requirements import requirement
from tests.thinking import ask, tool

PLAIN = {"type", "properties", "required", "items", "enum", "const", "anyOf", "additionalProperties"}
FREE = {"type": "object", "additionalProperties": True}


def taking(schema: dict[str, Any], description: str = "Works.") -> Tool:
    return replace(tool("work"), parameters_schema=schema, description=description)


def arguments(schema: dict[str, Any]) -> Any:
    """What the arguments of a tool with this schema are held to."""
    whole = answer_grammar([taking(schema)], None)
    return whole["anyOf"][0]["properties"]["calls"]["items"]["properties"]["arguments"]


def keywords(schema: Mapping[str, Any]) -> Iterator[str]:
    """All keywords in a schema; the names of properties are none."""
    yield from schema
    for inner in schema.get("properties", {}).values():
        yield from keywords(inner)
    for inner in schema.get("anyOf", ()):
        yield from keywords(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(inner := schema.get(key), dict):
            yield from keywords(inner)


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
PYDANTIC = {
    "$defs": {"Person": PERSON, "Kind": {"enum": ["a", "b"], "type": "string"}},
    "type": "object",
    "properties": {
        "people": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
        "kind": {
            "anyOf": [{"$ref": "#/$defs/Kind"}, {"type": "null"}],
            "default": None,
            "description": "which",
        },
        "limit": {"allOf": [{"type": "integer"}], "minimum": 1, "maximum": 9, "title": "Limit"},
        "size": {"type": ["integer", "null"]},
    },
    "required": ["people"],
}


@requirement("model:json:grammar")
def test_references_are_expanded_and_only_plain_keywords_are_left() -> None:
    kind = {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}
    size = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    people = {"type": "array", "items": closed(name={"type": "string"})}
    properties = {"people": people, "kind": kind, "limit": {"type": "integer"}, "size": size}
    assert arguments(PYDANTIC) == {**closed(**properties), "required": ["people"]}


@requirement("model:json:grammar")
@pytest.mark.parametrize(
    "exotic",
    [
        {"patternProperties": {"^x": {"type": "integer"}}},
        {"allOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"properties": {"a": {"not": {"type": "string"}}}},
        {"properties": {"a": {"$ref": "https://example.com/schema.json"}}},
        {"properties": {"a": {"$ref": "#/properties/b"}}},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}]}}},
        {"properties": {"a": {"enum": [{"b": 1}]}}},
        {"properties": {"a": {"type": "file"}}},
        {"properties": {"a": False}},
        {"required": [{"a": 1}]},
        {"properties": {str(n): {"type": ["string", "null"]} for n in range(200)}},
        {"properties": {str(n): {"$ref": "#/$defs/a"} for n in range(50)},
         "$defs": {"a": {"properties": {str(n): {"$ref": "#/$defs/b"} for n in range(50)}}, "b": {"type": "string"}}},
    ],
)  # fmt: skip
def test_what_is_no_plain_schema_is_any_object_and_stands_in_the_prompt_as_it_is(
    exotic: dict[str, Any],
) -> None:
    schema = {"type": "object", **exotic}
    assert arguments(schema) == FREE
    assert described(taking(schema)) == (
        f"- work(arguments): Works.\n  arguments: JSON that meets {json.dumps(schema)}"
    )


def test_a_schema_that_is_too_deep_is_given_up_in_time() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(Exotic):
        plain(deep)


def test_tools_are_described_once_and_anew_when_they_change() -> None:
    form, work, rest = JsonForm(), tool("work"), tool("rest")
    grammars = [
        form.tell(ask(tools=tools), None).formats[0]["json_schema"]["schema"]  # type: ignore[index]
        for tools in ([work], [work], [work, rest])
    ]
    assert grammars[0] is grammars[1]
    assert grammars[2] == answer_grammar([work, rest], None)


@requirement("model:json:grammar")
@pytest.mark.parametrize("value", ["x", 1, 1.5, True, None, {"a": [1]}, [1, "x", None, {"b": 1}], []])
def test_where_anything_may_stand_anything_can_be_written(value: Any) -> None:
    schemas: list[dict[str, Any]] = [
        {"properties": {"a": {}}},
        {"required": ["a"]},
        {"properties": {"a": True}},
    ]
    for schema in schemas:
        grammar = arguments({"type": "object", **schema})
        assert set(keywords(grammar)) <= PLAIN
        assert Draft202012Validator(grammar).is_valid({"a": value})


@requirement("model:json:grammar")
def test_without_tools_and_in_last_words_there_is_only_the_answer() -> None:
    text = {"type": "string"}
    assert answer_grammar([], None) == closed(thought=text, answer=text)
    assert answer_grammar([], PERSON) == closed(thought=text, answer=closed(name=text))
    whole = answer_grammar([taking({"type": "object"})], None)
    assert whole == {
        "type": "object",
        "anyOf": [
            closed(thought=text, calls={"type": "array", "items": called("work", FREE)}),
            closed(thought=text, answer=text),
        ],
    }


SCALARS = st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")])
LITERALS = st.lists(st.text(max_size=3) | st.integers(-3, 3), min_size=1, max_size=3).map(
    lambda v: {"enum": v}
)
SCHEMAS = st.recursive(
    SCALARS | LITERALS | st.just({}),
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda properties: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:1],
            }
        ),
        inner.map(lambda schema: {**schema, "not": {"const": 99}}),
        inner.map(lambda schema: {**schema, "description": "d", "minimum": 0, "format": "f", "title": "t"}),
    ),
    max_leaves=8,
)


@requirement("model:json:grammar")
@given(st.dictionaries(st.sampled_from("abc"), SCHEMAS, max_size=3))
def test_every_grammar_is_plain_and_every_tool_can_be_told(properties: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": properties}
    grammar = answer_grammar([taking(schema), tool("add")], schema)
    Draft202012Validator.check_schema(grammar)
    assert set(keywords(grammar)) <= PLAIN
    assert described(taking(schema)).startswith("- work(")


# ── in the prompt ────────────────────────────────────────────────────────────────────────────────────


@requirement("model:json")
def test_a_tool_is_told_as_a_function_with_a_line_for_what_needs_one() -> None:
    schema = {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "a glob\n  of names"},
            "in": {"enum": ["names", "texts"], "default": "names"},
            "limit": {"type": "integer", "minimum": 1, "description": "how many"},
            "where": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "its name"},
                    "zip code": {"const": 1},
                },
                "required": ["city"],
            },
            "tags": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            "more": {},
        },
        "required": ["pattern", "where"],
    }
    assert described(taking(schema, "Finds\n\n   files.")) == (
        '- work(pattern: string, in?: "names" | "texts", limit?: integer, '
        'where: {city: string, "zip code"?: 1}, tags?: (string | null)[], more?: any): Finds files.\n'
        "  pattern: a glob of names\n"
        '  in: default "names"\n'
        "  limit: how many (minimum 1)\n"
        "  where.city: its name"
    )


def test_a_signature_takes_a_fraction_of_the_schema() -> None:
    assert len(described(taking(PYDANTIC))) < len(json.dumps(PYDANTIC)) / 3


@requirement("docs:blocks")
def test_the_page_shows_what_a_model_reads() -> None:
    page = (Path(__file__).parents[1] / "docs" / "local-models.md").read_text(encoding="utf-8")
    pattern = {"type": "string", "description": "a regular expression"}
    limit = {"type": "integer", "default": 20, "minimum": 1}
    text = {"type": "string"}
    search = {"properties": {"pattern": pattern, "glob": text, "limit": limit}, "required": ["pattern"]}
    count = {"properties": {"glob": text}, "required": ["glob"]}
    tools = [
        replace(taking({"type": "object", **search}, "Finds text in files."), name="files__search"),
        replace(taking({"type": "object", **count}, "Counts files."), name="files__count"),
    ]
    assert f"```text\n{instructions(tools, None)}\n```" in page
