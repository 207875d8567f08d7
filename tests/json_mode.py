"""What tests of JSON mode share: answers as such a model writes them, and what it was told."""

from __future__ import annotations

import json
from typing import Any

from tests.fake_models import Answer

HOW = (
    'Answer with one JSON object and nothing else. To use tools: {"thought": "why, in one sentence", "calls": '
    '[{"name": "…", "arguments": {…}}]}. Calls in one answer run together; what they give comes with the next '
    'message. When you are done: {"thought": "why, in one sentence", "answer": "…"}.'
)


def said(**step: Any) -> str:
    """One step as a model says it."""
    return json.dumps(step, ensure_ascii=False)


def calls(*asked: tuple[str, dict[str, Any]], thought: str = "I look.", **answer: Any) -> Answer:
    """An answer with these calls."""
    entries = [{"name": name, "arguments": arguments} for name, arguments in asked]
    return Answer(text=said(thought=thought, calls=entries), **answer)


def final(text: Any, thought: str = "", **answer: Any) -> Answer:
    """An answer that ends the run."""
    return Answer(text=said(thought=thought, answer=text), **answer)


def closed(**properties: Any) -> dict[str, Any]:
    """The schema of an object with just these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
ANSWER = closed(thought=TEXT, answer=TEXT)


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The schema of one call."""
    return closed(name={"const": name}, arguments=arguments)


def held_to(schema: dict[str, Any]) -> dict[str, Any]:
    """The response_format with this schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
