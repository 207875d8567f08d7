"""What is no tool, said before anything runs."""

from __future__ import annotations

from typing import Literal, TypeAlias

Code: TypeAlias = Literal[
    "unknown_kind", "invalid_schema", "name_clash", "unknown_name", "external_tool", "not_opened"
]


class ToolsetError(ValueError):
    """Tools cannot be made of what was given; the text names it and the cure, `code` is stable.

    `unknown_kind`: nothing that we know. `invalid_schema`: no schema can be made of its parameters. `name_clash`:
    two tools have one name. `unknown_name`: a mark names no tool. `external_tool`: somebody else would have to run it. `not_opened`: its own code failed,
    or took too long, when it was opened or listed its tools.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
