"""`scripted:PATH`: a model that is a YAML script, for demos and tests. It thinks nothing; it plays.

    turns:                             # one per model request of a run, in order
      - reasoning: I should look.      # all fields are optional
        text: Looking …
        calls:
          - name: files__search
            arguments: {pattern: "*.md"}   # a map, or raw text as a model might write it
            id: call_1                     # else one is made
        delay: 0.5                     # seconds before the answer
        usage: {input_tokens: 12, output_tokens: 5, cost_usd: 0.001}
      - errors:                        # failures before the answer, one per attempt (also `error:` for one)
          - {status: 429, message: slow down, retry_after: 2}
        text: "Found: {{ last_observation }}"
      - text: half an ans
        finish: length                 # the answer was cut at the token limit (or content_filter)
    closing:                           # the answer to a closing request (a budget ran out); else an empty one
      text: That is all I got.

A list of turns alone is a script too. The turn is the number of turns that the run has on record, so a run
goes on where it stopped, also in another process. After the last turn: the script's last text, without calls.

Texts may hold `{{ prompt }}`, `{{ last_observation }}` (of the newest tool call that ended) and
`{{ observations.<tool> }}` (the newest of that tool), so that an answer is made from real results.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from executor.fields import fault_of, no_such_field
from executor.model_names import SCRIPTED
from executor.outcomes import Slot, Thought
from executor.think import Ask, ModelFailure, Transient

if TYPE_CHECKING:
    from yaml import YAMLError

_PLACEHOLDER = re.compile(r"\{\{\s*(?P<name>[^{}]*?)\s*\}\}")
_KNOWN = re.compile(r"prompt|last_observation|observations\.[\w-]+")
_PASSING = frozenset((408, 409, 425, 429))


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class ScriptedCall(_Part):
    """One tool call of a scripted answer."""

    name: str = Field(min_length=1)
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    id: str | None = None


class ScriptedError(_Part):
    """One failed attempt."""

    status: int = Field(default=500, ge=400, le=599)
    message: str = "a scripted failure"
    retry_after: float | None = Field(default=None, ge=0)

    def failure(self, model: str) -> ModelFailure:
        return ModelFailure(
            f"{model}: HTTP {self.status}: {self.message}",
            retryable=self.status in _PASSING or self.status >= 500,
            retry_after=self.retry_after,
        )


class ScriptedUsage(_Part):
    """What a scripted answer says that it used."""

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)


class ScriptedTurn(_Part):
    """One scripted answer, and the failures before it."""

    text: str = ""
    reasoning: str = ""
    calls: list[ScriptedCall] = Field(default_factory=list)
    delay: float = Field(default=0.0, ge=0)
    errors: list[ScriptedError] = Field(default_factory=list)
    finish: Literal["length", "content_filter"] | None = None
    usage: ScriptedUsage = Field(default_factory=ScriptedUsage)

    @model_validator(mode="before")
    @classmethod
    def _one_error(cls, turn: Any) -> Any:
        if isinstance(turn, dict) and "error" in turn:
            turn = dict(turn)
            turn["errors"] = [turn.pop("error"), *turn.get("errors", [])]
        return turn

    @field_validator("text", "reasoning")
    @classmethod
    def _known_placeholders(cls, text: str) -> str:
        for found in _PLACEHOLDER.finditer(text):
            if not _KNOWN.fullmatch(found["name"]):
                raise ValueError(
                    f"unknown placeholder {found[0]}: use prompt, last_observation or observations.<tool>"
                )
        return text


class Script(_Part):
    """A whole script."""

    turns: Annotated[list[ScriptedTurn], Field(min_length=1)]
    closing: ScriptedTurn = Field(default_factory=ScriptedTurn)

    def turn(self, index: int, *, closing: bool) -> ScriptedTurn:
        if closing:
            return self.closing
        if index < len(self.turns):
            return self.turns[index]
        return ScriptedTurn(text=next((turn.text for turn in reversed(self.turns) if turn.text), ""))


def script_path(model: str) -> Path:
    """Where the script of the model `scripted:PATH` is."""
    return Path(model.removeprefix(SCRIPTED))


def read_script(path: Path) -> Script:
    """The script in a file. Raises `ModelFailure` that names the file and each line or field at fault."""
    import yaml  # here: only scripts need it

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
        if value is None:
            raise ModelFailure(
                f"scripted:{path}: the file is empty: write a list of turns, such as - text: Hello"
            )
        return Script.model_validate({"turns": value} if isinstance(value, list) else value)
    except OSError as error:
        raise ModelFailure(f"scripted:{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ModelFailure(f"scripted:{path}: the file is no UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ModelFailure(f"scripted:{path}: no YAML: {_where(error)}") from None
    except ValidationError as error:
        raise ModelFailure(f"scripted:{path}: {'; '.join(_faults(error))}") from None


def states_costs(path: Path) -> bool:
    """Whether any answer of the script in this file says what it costs. For a thread."""
    try:
        script = read_script(path)
    except ModelFailure:
        return False
    return any(turn.usage.cost_usd is not None for turn in (*script.turns, script.closing))


def _where(error: YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None:
        return f"line {mark.line + 1}: {problem}"
    return " ".join(str(error).split())


def _faults(error: ValidationError) -> Iterator[str]:
    for fault in error.errors()[:5]:
        yield f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {_words(fault)}"


def _words(fault: ErrorDetails) -> str:
    """What is wrong, and for a field that does not exist which one was meant."""
    match fault["type"], fault["loc"]:
        case "extra_forbidden", (*above, str(name)):
            return no_such_field(name, _fields(above))
        case (("model_type" | "dict_type"), ()):
            return "is no script: write a list of turns, or a map with turns"
        case _:
            return fault_of(fault)


def _fields(above: list[int | str]) -> Iterable[str]:
    """The fields that may stand there."""
    kinds: dict[str, type[_Part]] = {"calls": ScriptedCall, "errors": ScriptedError, "usage": ScriptedUsage}
    names = [part for part in above if isinstance(part, str)]
    if not names:
        return Script.model_fields
    return kinds.get(names[-1], ScriptedTurn).model_fields


class ScriptedThinker:
    """Plays one script for one drive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._script: Script | None = None
        self._failed: Counter[int] = Counter()  # attempts that failed, by turn

    async def think(self, ask: Ask, transient: Transient | None = None) -> Thought:
        """The scripted answer to this turn. Raises `ModelFailure` for a scripted error or a faulty script."""
        if self._script is None:
            self._script = await asyncio.to_thread(read_script, self._path)
        index = -1 if ask.closing else len(ask.chapter.turns)
        turn = self._script.turn(index, closing=ask.closing)
        await asyncio.sleep(turn.delay)
        if (attempt := self._failed[index]) < len(turn.errors):
            self._failed[index] += 1
            raise turn.errors[attempt].failure(f"scripted:{self._path}")
        answer = turn.model_copy(
            update={"text": _filled(turn.text, ask), "reasoning": _filled(turn.reasoning, ask)}
        )
        if transient is not None:
            _tell(answer, transient)
        return await asyncio.to_thread(_thought, answer, ask)


def _tell(answer: ScriptedTurn, transient: Transient) -> None:
    if answer.reasoning:
        transient({"type": "thinking", "delta": answer.reasoning})
    if answer.text:
        transient({"type": "text", "delta": answer.text})


def _thought(answer: ScriptedTurn, ask: Ask) -> Thought:
    """The answer, taken the way every model's answer is. In a thread: the first use imports Pydantic AI."""
    from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
    from pydantic_ai.usage import RequestUsage

    from executor.answers import thought
    from executor.output_tool import output_tool

    response = ModelResponse(
        parts=[
            *([ThinkingPart(answer.reasoning)] if answer.reasoning else []),
            *([TextPart(answer.text)] if answer.text else []),
            *(ToolCallPart(call.name, _arguments(call), tool_call_id=call.id or "") for call in answer.calls),
        ],
        usage=RequestUsage(input_tokens=answer.usage.input_tokens, output_tokens=answer.usage.output_tokens),
        finish_reason=answer.finish,
    )
    output = None
    if ask.output_schema is not None:
        output = output_tool(ask.output_schema, {tool.name for tool in ask.tools})
    return thought(response, ask, output, answer.usage.cost_usd)


def _arguments(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, default=str)


def _filled(text: str, ask: Ask) -> str:
    """The text with its placeholders replaced by what the run has seen."""
    return _PLACEHOLDER.sub(lambda found: _value(found["name"], ask), text)


def _value(name: str, ask: Ask) -> str:
    if name == "prompt":
        return ask.chapter.prompt
    tool = name.removeprefix("observations.") if name != "last_observation" else None
    slots = [slot for slot in _ended(ask) if tool is None or slot.call.name == tool]
    return slots[-1].observation if slots else "(nothing yet)"


def _ended(ask: Ask) -> Iterator[Slot]:
    return (slot for turn in ask.chapter.turns for slot in turn.slots if slot.stage == "ended")
