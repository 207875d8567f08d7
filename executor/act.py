"""One tool call turned into one observation, whatever the tool does.

`act` never raises for a fault of the model's or of the tool: each failure is an observation `TOOL_ERROR: …`
with the reason and what to change. It knows nothing of when calls run (rules.py, loop.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from executor.media import sorted_out
from executor.outcomes import Call, Json, Observed
from executor.patience import patience
from executor.strict_json import NotAllowed, holds_iterator, parse_json, too_deep
from executor.text import clean, clean_json, cut
from executor.tools import MAX_OBSERVATION_BYTES, MAX_RESULT_BYTES, Tool, ToolContext, ToolFailure, ToolOutput

if TYPE_CHECKING:
    from executor.json_schema import Checker

log = logging.getLogger("loopwright.executor")

STOP_GRACE = 5.0
"""Seconds that a cancelled tool gets to clean up before it is abandoned."""
MAX_ERROR_BYTES = 4096
LONG = 256 * 1024
"""Characters of a result that are read on the event loop, in some milliseconds."""
MOST_WRITTEN = 250
"""Levels of a value that pydantic writes; for what is deeper it writes `"..."`."""


async def act(
    call: Call,
    tools: Mapping[str, Tool],
    context: ToolContext,
    *,
    time_limit: float,
    stop: asyncio.Future[None],
    offered: Collection[str] = (),
    grace: float = STOP_GRACE,
) -> Observed:
    """What came of one call: run to its end, to its time limit (seconds, see patience.py) or until `stop` is done.

    `offered`: names that the run was offered, also of tools that are not here now. A tool that ignores its cancellation for `grace` seconds is abandoned, and its late result dropped.
    """
    started = time.perf_counter()

    def failed(reason: str, *, counts: bool = True, result: Json = None) -> Observed:
        return _failed(call, reason, time.perf_counter() - started, counts=counts, result=result)

    tool = tools.get(call.name)
    if tool is None:
        return failed(_away(call.name) if call.name in offered else _unknown(call.name, tools))
    if fault := arguments_fault(call, tool.parameters_schema):
        return failed(fault)
    limit = patience(tool, time_limit)

    def progress(text: str) -> None:
        limit.heard()
        context.progress(text)

    heard = replace(context, progress=progress)
    task = asyncio.create_task(_call(tool, call.arguments, heard), name=f"tool {context.key}")
    try:
        await limit.outlast(task, stop)
        ours = not task.done()  # it is we who end it
        abandoned = not await _end(task, grace)
    except asyncio.CancelledError:
        await _end(task, grace)
        raise
    if abandoned:
        log.warning("tool %s of %s ignores its cancellation and is abandoned", call.name, context.key)
    if abandoned or (ours and (task.cancelled() or task.exception())):
        left = " (it ignores the cancellation and was abandoned)" if abandoned else ""
        if stop.done():
            return failed(f"stopped{left}: the run is ending", counts=False)
        return failed(f"timed out after {limit.spent()}{left}. Ask for less at a time, or do without it")
    if task.cancelled():
        return failed("the tool cancelled itself. Try again or do without it")
    seconds = time.perf_counter() - started
    try:
        if error := task.exception():
            return _failed(call, _reason(error), seconds, counts=True, result=_kept(error))
        value = task.result()
        if _is_long(value):
            return await asyncio.to_thread(_succeeded, call, value, seconds)
        return _succeeded(call, value, seconds)
    except Exception as odd:  # noqa: BLE001 - a tool's value runs its own code when it is read
        reason = f"what the tool gave cannot be read ({type(odd).__name__}). Do without this tool"
        return _failed(call, reason, seconds, counts=True, result=None)


def arguments_fault(call: Call, schema: Mapping[str, Any]) -> str | None:
    """Why these arguments cannot be used, and what to change; None when they can."""
    if call.raw_arguments is not None:
        why = _why(call.raw_arguments)
        return (
            f"the arguments are not a JSON object{why}: {cut(call.raw_arguments, 200)} — send one JSON object"
        )
    try:
        checker = _checker(to_json(schema))
        error = checker.worst(call.arguments)
    except Exception as broken:  # noqa: BLE001 - a tool's own broken schema may raise anything; the tool decides
        _say_once(call.name, str(broken))
        return None
    if error is None:
        return None
    return f"invalid arguments at {error.json_path}: {cut(error.message, 500)} — correct them and call again"


def _why(raw: str) -> str:
    """Why it is JSON, and still none that can be used; empty for what is no JSON at all."""
    try:
        parse_json(raw)
    except NotAllowed as error:
        return f" that can be used ({error})"
    except ValueError:
        pass
    return ""


@lru_cache(maxsize=1024)
def _checker(schema: bytes) -> Checker:
    from executor.json_schema import Checker  # here: a server that starts has no use for it

    return Checker(from_json(schema))


@lru_cache(maxsize=1024)
def _say_once(name: str, why: str) -> None:
    log.warning("the schema of tool %s cannot be used to check arguments: %s", name, why)


async def _call(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> Any:
    try:
        return await tool.call(dict(arguments), context)
    except (SystemExit, KeyboardInterrupt) as error:  # a tool's, not ours: they would end the event loop
        raise ToolFailure(f"the tool tried to end the process ({type(error).__name__})") from error


async def _end(task: asyncio.Task[Any], grace: float) -> bool:
    """Cancel the task if it still runs; whether it ended within `grace` seconds."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=grace)
    if not task.done():
        _abandoned.add(task)
        task.add_done_callback(_forget)
    return task.done()


# Tasks that ignored their cancellation: held so that they are not collected while they run.
_abandoned: set[asyncio.Task[Any]] = set()


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled() and (error := task.exception()):
        log.info("abandoned %s ended with %s", task.get_name(), type(error).__name__)


def _unknown(name: str, tools: Mapping[str, Tool]) -> str:
    known = ", ".join(sorted(tools)) or "none"
    return f"unknown tool {cut(name, 100)!r}. Tools that you may call: {cut(known, 2000)}"


def _away(name: str) -> str:
    return f"tool {name} is not available now. Do without it, or try again later"


def _cause(error: BaseException) -> BaseException:
    """What really went wrong: the first of a group."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _reason(error: BaseException) -> str:
    """A failure in one short text: a tool's own words as they are, else with the exception's type."""
    error = _cause(error)
    try:
        said = clean(str(error)).strip()
    except Exception:  # noqa: BLE001 - an exception's own `__str__` may raise anything
        said = ""
    if not isinstance(error, ToolFailure):
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return cut(said or "the tool failed without a word", MAX_ERROR_BYTES)


def _kept(error: BaseException) -> Json:
    """What the tool wants on record of its failure; None for what cannot be kept."""
    error = _cause(error)
    try:
        return _record(to_value(error.result)) if isinstance(error, ToolFailure) else None
    except (ValueError, RecursionError):
        return None


def _failed(call: Call, reason: str, seconds: float, *, counts: bool, result: Json) -> Observed:
    return Observed(
        call_id=call.id,
        observation=f"TOOL_ERROR: {reason}",
        result=result,
        error=reason,
        counts=counts,
        duration_ms=_milliseconds(seconds),
    )


def _succeeded(call: Call, value: Any, seconds: float) -> Observed:
    output = value if isinstance(value, ToolOutput) else None
    try:
        result = to_value(value if output is None else output.result)
        text = result if output is None else to_value(output.text)
    except (ValueError, RecursionError) as error:
        reason = f"the result is not JSON: {cut(clean(str(error)), 500)}. Do without this tool"
        return _failed(call, reason, seconds, counts=True, result=None)
    if not isinstance(text, str):
        text = to_json(text).decode()
    content, lines = sorted_out(() if output is None else output.content, MAX_RESULT_BYTES)
    room = MAX_RESULT_BYTES - sum(len(part["data"]) for part in content)
    return Observed(
        call_id=call.id,
        observation=cut("\n".join([text, *lines]), MAX_OBSERVATION_BYTES),
        content=content,
        result=_record(result, room),
        duration_ms=_milliseconds(seconds),
    )


def _is_long(value: Any) -> bool:
    """Whether reading it takes more than a moment of the event loop: then a thread does it."""
    text = value.text if isinstance(value, ToolOutput) else value
    return isinstance(text, str) and len(text) > LONG


def _milliseconds(seconds: float) -> float:
    return max(0.001, round(seconds * 1000, 3))  # a call that ran took some time


def to_value(value: Any) -> Json:
    """Any Python value as a JSON value; one nested too deep for the log as its JSON text.

    Raises `ValueError` or `RecursionError` for what cannot be made JSON: it contains a generator, or is deeper
    than can be written.
    """
    if isinstance(value, str):
        return clean(value)
    if holds_iterator(value):  # reading one may never end, and would hold up everybody else
        raise ValueError("the tool returned a generator or another iterator: it should return a list")
    try:
        data = _dump(value)
    except PydanticSerializationError:  # lone surrogates
        data = _dump(clean_json(value))
    try:
        made = from_json(data)
    except ValueError:  # what was written can be read but for its depth
        if too_deep(json.loads(data), MOST_WRITTEN):
            raise ValueError("it is nested too deep") from None
        return data.decode()
    return data.decode() if too_deep(made) else made


def _dump(value: Any) -> bytes:
    return to_json(value, serialize_unknown=True, inf_nan_mode="strings", bytes_mode="base64")


def _record(result: Json, limit: int = MAX_RESULT_BYTES) -> Json:
    """What the record keeps of a result: all of it up to `limit` bytes of JSON, else its cut text."""
    if isinstance(result, str):
        return cut(result, limit)
    data = to_json(result)
    return result if len(data) <= limit else cut(data.decode(), limit)
