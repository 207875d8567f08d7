"""One tool call → one observation, whatever the tool does."""

import asyncio
import math
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from executor.act import act
from executor.outcomes import Call, Observed
from executor.registry import registered_tools
from executor.tools import Tool, ToolContext, ToolFailure, ToolOutput
from tests.requirements import requirement

CONTEXT = ToolContext(key="e:c", execution_id="e", call_id="c", session_id=None, owner="local")
ANY = {"type": "object"}


def tool(function: Callable[..., Any], *, name: str = "t", parameters: dict[str, Any] | None = None) -> Tool:
    return registered_tools({name: function}, [{"name": name, "parameters": parameters or ANY}])[name]


async def observe(
    target: Tool | Callable[..., Any],
    arguments: dict[str, Any] | None = None,
    *,
    raw: str | None = None,
    time_limit: float = 60.0,
    grace: float = 5.0,
    stop: "asyncio.Future[None] | None" = None,
) -> Observed:
    made = target if isinstance(target, Tool) else tool(target)
    call = Call(id="c", name="t", arguments=arguments or {}, raw_arguments=raw)
    stop = stop or asyncio.get_running_loop().create_future()
    async with asyncio.timeout(5):
        return await act(call, {"t": made}, CONTEXT, time_limit=time_limit, stop=stop, grace=grace)


def never(**_: Any) -> None:
    raise AssertionError("the tool must not be called")


async def test_text_is_read_as_it_is_and_everything_else_as_json() -> None:
    async def text() -> str:
        return "Grüße\n"

    async def data() -> dict[str, Any]:
        return {"a": [1, None, "x"]}

    first, second = await observe(text), await observe(data)
    assert (first.observation, first.result, first.error) == ("Grüße\n", "Grüße\n", None)
    assert (second.observation, second.result) == ('{"a":[1,null,"x"]}', {"a": [1, None, "x"]})
    assert first.duration_ms > 0


@requirement("fail:malformed-arguments")
@requirement("fail:non-object-arguments")
@pytest.mark.parametrize("raw", ['{"city":"Ly', "null", '"text"', "[1]"])
async def test_arguments_that_are_no_json_object_come_back_as_an_observation(raw: str) -> None:
    seen = await observe(never, raw=raw)
    assert (
        seen.observation == f"TOOL_ERROR: the arguments are not a JSON object: {raw} — send one JSON object"
    )
    assert seen.counts


async def test_arguments_that_do_not_fit_the_schema_say_where_and_why() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wrong = await observe(tool(never, parameters=schema), {"n": "5"})
    missing = await observe(tool(never, parameters=schema), {})
    assert (
        wrong.error == "invalid arguments at $.n: '5' is not of type 'integer' — correct them and call again"
    )
    assert missing.error == "invalid arguments at $: 'n' is a required property — correct them and call again"
    assert wrong.counts and missing.counts


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"$ref": "http://127.0.0.1:9/never-fetched.json"}])
async def test_a_schema_that_cannot_be_used_leaves_the_check_to_the_tool(schema: dict[str, Any]) -> None:
    async def echo(**arguments: Any) -> Any:
        return arguments

    unusable = replace(tool(echo), parameters_schema=schema)
    assert (await observe(unusable, {"a": 1})).result == {"a": 1}


@requirement("fail:unknown-tool")
async def test_an_unknown_tool_names_the_known_ones() -> None:
    stop = asyncio.get_running_loop().create_future()
    call = Call(id="c", name="serach", arguments={})
    seen = await act(call, {"search": tool(never)}, CONTEXT, time_limit=1, stop=stop)
    assert seen.observation == "TOOL_ERROR: unknown tool 'serach'. Tools that you may call: search"
    away = await act(call, {}, CONTEXT, time_limit=1, stop=stop, offered=("serach",))
    assert away.error == "tool serach is not available now. Do without it, or try again later"


@requirement("fail:raising-tool")
async def test_an_exception_is_an_observation_with_its_type_and_words() -> None:
    async def broken() -> None:
        raise ValueError("no such city")

    async def group() -> None:
        raise BaseExceptionGroup("several", [KeyError("deep")])

    async def own_words() -> None:
        raise ToolFailure("the shop is closed", result={"until": "9:00"})

    async def silent() -> None:
        raise RuntimeError

    seen = await observe(broken)
    assert (seen.observation, seen.counts) == ("TOOL_ERROR: ValueError: no such city", True)
    assert (await observe(group)).error == "KeyError: 'deep'"
    assert (await observe(silent)).error == "RuntimeError"
    seen = await observe(own_words)
    assert (seen.error, seen.result) == ("the shop is closed", {"until": "9:00"})


async def test_a_tool_that_tries_to_end_the_process_only_fails() -> None:
    async def leave() -> None:
        sys.exit(3)

    def leave_in_a_thread() -> None:
        raise KeyboardInterrupt

    assert (await observe(leave)).error == "the tool tried to end the process (SystemExit)"
    assert (await observe(leave_in_a_thread)).error == "the tool tried to end the process (KeyboardInterrupt)"


@requirement("fail:tool-timeout")
async def test_a_tool_that_takes_too_long_is_cancelled_and_says_so() -> None:
    cleaned_up = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    seen = await observe(slow, time_limit=0.01)
    assert seen.error == "timed out after 0.01 s. Ask for less at a time, or do without it"
    assert seen.counts and cleaned_up.is_set()


async def test_a_tool_that_ignores_its_cancellation_is_abandoned_and_named() -> None:
    release = asyncio.Event()

    async def deaf() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    seen = await observe(deaf, time_limit=0.01, grace=0.01)
    assert seen.error == (
        "timed out after 0.01 s (it ignores the cancellation and was abandoned). "
        "Ask for less at a time, or do without it"
    )
    release.set()
    await asyncio.sleep(0)


async def test_a_stopped_call_does_not_count_and_a_result_at_the_same_moment_is_kept() -> None:
    started = asyncio.Event()

    async def slow() -> None:
        started.set()
        await asyncio.Event().wait()

    async def quick() -> str:
        stop.set_result(None)
        return "done"

    stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    observing = asyncio.create_task(observe(slow, stop=stop))
    await started.wait()
    stop.set_result(None)
    seen = await observing
    assert (seen.error, seen.counts) == ("stopped: the run is ending", False)
    stop = asyncio.get_running_loop().create_future()
    assert (await observe(quick, stop=stop)).result == "done"


async def test_a_tool_that_cancels_itself_fails_and_leaves_its_caller_alone() -> None:
    async def odd() -> None:
        raise asyncio.CancelledError

    assert (await observe(odd)).error == "the tool cancelled itself. Try again or do without it"


async def test_cancelling_the_call_cancels_the_tool() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    observing = asyncio.create_task(observe(slow))
    await started.wait()
    observing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await observing
    assert ended.is_set()


@requirement("tool:unserialisable")
async def test_what_is_not_json_is_made_json() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    async def mixed() -> Any:
        return {"set": {1}, "bytes": b"\xff", "nan": math.nan, "odd": Odd(), 5: "five"}

    seen = await observe(mixed)
    assert seen.result == {"set": [1], "bytes": "_w==", "nan": "NaN", "odd": "<odd>", "5": "five"}


async def test_a_result_that_contains_itself_or_is_too_deep_does_no_harm() -> None:
    async def cycle() -> Any:
        value: list[Any] = []
        value.append(value)
        return value

    async def deep(levels: int) -> Any:
        value: Any = "\ud83d"  # needs cleaning, level by level
        for _ in range(levels):
            value = [value]
        return value

    assert (await observe(cycle)).result == ["..."]
    for levels in (65, 200, 210, 250):  # the log writes some 250 levels and reads some 200
        seen = await observe(deep, {"levels": levels})
        text = "[" * levels + '"\ufffd"' + "]" * levels
        assert (seen.observation, seen.result, seen.error) == (text, text, None), levels
    seen = await observe(deep, {"levels": 100_000})
    assert seen.observation.startswith("TOOL_ERROR: the result is not JSON: ")


@requirement("tool:surrogates")
async def test_lone_surrogates_become_replacement_characters_everywhere() -> None:
    async def text() -> str:
        return "a\ud83d b"

    async def data() -> Any:
        return {"k\udc00": ["\ud83d"]}

    async def broken() -> None:
        raise ValueError("bad \ud83d")

    assert (await observe(text)).observation == "a\ufffd b"
    assert (await observe(data)).result == {"k\ufffd": ["\ufffd"]}
    assert (await observe(broken)).error == "ValueError: bad \ufffd"


@requirement("tool:oversized")
async def test_a_large_result_is_cut_for_the_model_and_kept_up_to_one_mebibyte() -> None:
    async def text() -> str:
        return "é" * 600_000  # 1.2 MB of UTF-8

    async def data() -> Any:
        return ["x" * 1000] * 100

    seen = await observe(text)
    assert len(seen.observation.encode()) <= 65_536
    assert seen.observation.endswith("… [cut: 65536 of 1200000 bytes shown]")
    assert len(seen.result.encode()) <= 1_048_576
    assert seen.result.endswith("… [cut: 1048576 of 1200000 bytes shown]")
    seen = await observe(data)
    assert seen.observation.endswith("… [cut: 65536 of 100301 bytes shown]")
    assert seen.result == ["x" * 1000] * 100


async def test_images_are_kept_as_content_beside_the_text() -> None:
    image = {"type": "image", "mime_type": "image/png", "data": "iVBORw0KGgo="}

    async def draw() -> ToolOutput:
        return ToolOutput(text="[image image/png, 8 bytes]", content=(image,), result={"content": [image]})

    seen = await observe(draw)
    assert seen.observation == "[image image/png, 8 bytes]"
    assert (seen.content, seen.result) == ((image,), {"content": [image]})


@requirement("tool:sync")
async def test_plain_functions_run_in_a_thread_and_may_give_an_awaitable() -> None:
    here = threading.get_ident()

    def plain() -> bool:
        return threading.get_ident() != here

    async def later() -> str:
        return "awaited"

    assert (await observe(plain)).result is True
    assert (await observe(lambda: later())).result == "awaited"


async def test_a_parameter_annotated_tool_context_gets_it() -> None:
    async def with_context(a: int, context: ToolContext) -> list[Any]:
        return [a, context.key]

    async def with_text_annotation(ctx: "ToolContext") -> str:
        return ctx.owner

    assert (await observe(with_context, {"a": 1})).result == [1, "e:c"]
    assert (await observe(with_text_annotation)).result == "local"


def test_a_definition_without_a_callable_and_a_callable_without_one_are_not_offered() -> None:
    async def known() -> None: ...

    marked = Tool(name="m", description="", parameters_schema=ANY, call=lambda a, c: known(), read_only=True)
    definitions: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "a", "description": "first", "parameters": ANY}},
        {"name": "b"},
        {"name": "gone"},
    ]
    refused: list[Exception] = []
    registry: dict[str, Any] = {"a": known, "b": known, "bare": known, "m": marked}
    tools = registered_tools(registry, definitions, refuse=refused.append)
    assert sorted(tools) == ["a", "b", "m"]
    assert (tools["a"].description, tools["b"].parameters_schema) == (
        "first",
        {"type": "object", "properties": {}},
    )
    assert tools["m"] is marked
    assert list(map(str, refused)) == [
        "tool_schemas[2] defines 'gone', for which tool_registry has no function. There are: a, b, bare, m."
    ]
