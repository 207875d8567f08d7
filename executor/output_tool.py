"""The tool through which a model gives its answer as data, when a request has an `output_schema`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from executor.json_schema import Checker, Unusable

OUTPUT_TOOL = "final_result"
_WRAPPED = "result"
_COMPLAINTS = 5
_COMPLAINT_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class OutputTool:
    """`final_result`: its parameters are the schema itself, or `{"result": …}` when that is no object schema.

    `called`: the model gives its answer by calling it; else in JSON, and only what is checked here is the same.
    """

    schema: dict[str, Any]
    name: str = OUTPUT_TOOL
    called: bool = True
    checker: Checker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "checker", Checker(self.schema))

    @property
    def description(self) -> str:
        return "Give the final answer. Call it once, alone, when you are done; the task ends with it."

    @property
    def how(self) -> str:
        """What to do instead of answering in plain text."""
        if self.called:
            return f"call the tool {self.name} with your answer as arguments."
        return 'give one JSON object whose "answer" meets the schema.'

    @property
    def again(self) -> str:
        """What to do about an answer that does not meet the schema."""
        if self.called:
            return f"Call {self.name} again, once, with arguments that meet it."
        return 'Give an "answer" that meets it.'

    @property
    def wrapped(self) -> bool:
        return self.schema.get("type") != "object"

    @property
    def parameters(self) -> dict[str, Any]:
        if not self.wrapped:
            return self.schema
        inner = _moved({key: value for key, value in self.schema.items() if key != "$id"})
        return {"type": "object", "properties": {_WRAPPED: inner}, "required": [_WRAPPED]}

    def value(self, arguments: dict[str, Any]) -> Any:
        """The answer in the arguments of a call. Raises `KeyError` when the wrapping is missing."""
        return arguments[_WRAPPED] if self.wrapped else arguments

    def complaints(self, value: Any) -> list[str]:
        """What is wrong with an answer, one line each (at most five); empty when it meets the schema."""
        try:
            errors = sorted(self.checker.faults(value), key=lambda error: error.json_path)
        except Unusable as unusable:
            return [f"The schema cannot be applied: {unusable}"[:_COMPLAINT_CHARACTERS]]
        return [
            f"{error.json_path}: {error.message}"[:_COMPLAINT_CHARACTERS] for error in errors[:_COMPLAINTS]
        ]


def output_tool(schema: dict[str, Any], taken: Collection[str], *, called: bool = True) -> OutputTool:
    """The output tool for a schema, under a name that none of the other tools has."""
    name, n = OUTPUT_TOOL, 2
    while name in taken:
        name, n = f"{OUTPUT_TOOL}__{n}", n + 1
    return OutputTool(schema, name, called)


def _moved(node: Any) -> Any:
    """The schema with its references into itself following it to `#/properties/result`."""
    match node:
        case dict():
            return {key: _reference(v) if key == "$ref" else _moved(v) for key, v in node.items()}
        case list():
            return [_moved(item) for item in node]
        case _:
            return node


def _reference(target: Any) -> Any:
    if isinstance(target, str) and (target == "#" or target.startswith("#/")):
        return f"#/properties/{_WRAPPED}{target[1:]}"
    return _moved(target)
