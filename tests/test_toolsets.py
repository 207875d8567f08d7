"""Toolsets of Pydantic AI as tools: listed, validated, asked about and called as their owner meant them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pydantic_ai
import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import (
    AbstractToolset,
    ApprovalRequired,
    BinaryContent,
    CallDeferred,
    CombinedToolset,
    ExternalToolset,
    FunctionToolset,
    ImageUrl,
    ModelRetry,
    RunContext,
    ToolFailed,
    ToolReturn,
    WrapperToolset,
)
from pydantic_ai.messages import CachePoint, TextContent
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ToolsetTool

from executor import AgenticLoopExecutor, Tool
from executor.tools import ToolContext, ToolFailure, ToolOutput
from tests.fake_models import Answer, Call
from tests.requirements import requirement
from tests.runs import lines, run, running
from tool_clients.errors import ToolsetError
from tool_clients.held import held
from tool_clients.toolset import Toolset
from tool_clients.typed_tools import typed_tool, typed_tools

CONTEXT = ToolContext(key="e:c", execution_id="e", call_id="c", session_id="s", owner="local", depth=1)
PATIENCE = 20.0
PIXEL = base64.b64decode("iVBORw0KGgo=")


@dataclass
class Shop:
    """What the tools of a shop depend on."""

    currency: str


def price(ctx: RunContext[Shop], article: str, pieces: int = 1) -> str:
    """The price of some pieces.

    Args:
        article: What to buy.
    """
    return f"{pieces} {article}: {ctx.deps.currency}"


async def order(article: str) -> str:
    """Order one."""
    return f"{article} ordered"


def shop(**settings: Any) -> FunctionToolset[Any]:
    return FunctionToolset([price, order], **settings)


def marks(tools: dict[str, Tool]) -> dict[str, str]:
    """Each tool's marks, as words."""
    names = ("read_only", "idempotent", "needs_approval", "sequential", "timeout")
    return {key: " ".join(name for name in names if getattr(tool, name)) for key, tool in tools.items()}


async def use(toolset: Toolset, name: str, **arguments: Any) -> Any:
    async with asyncio.timeout(PATIENCE), toolset as tools:
        return await tools[name].call(arguments, CONTEXT)


async def names(*sources: Any) -> list[str]:
    async with asyncio.timeout(PATIENCE), Toolset(*sources) as tools:
        return list(tools)


@requirement("tools:pydantic-ai")
async def test_a_toolsets_tools_carry_their_schemas_and_descriptions() -> None:
    async with asyncio.timeout(PATIENCE), Toolset(shop(), deps=Shop("euros")) as tools:
        shown = {name: (tool.name, tool.description) for name, tool in tools.items()}
        said = await tools["price"].call({"article": "bolt", "pieces": 3}, CONTEXT)
    assert shown == {"price": ("price", "The price of some pieces."), "order": ("order", "Order one.")}
    assert tools["price"].parameters_schema == {
        "type": "object",
        "properties": {
            "article": {"type": "string", "description": "What to buy."},
            "pieces": {"type": "integer", "default": 1},
        },
        "required": ["article"],
        "additionalProperties": False,
    }
    assert said == "3 bolt: euros"


@requirement("tools:pydantic-ai")
@pytest.mark.parametrize(
    ("toolset", "offered"),
    [
        (lambda: shop().prefixed("my"), ["my_price", "my_order"]),
        (lambda: shop().renamed({"cost": "price"}), ["cost", "order"]),
        (lambda: shop().filtered(lambda ctx, tool: tool.name == "order"), ["order"]),
        (
            lambda: CombinedToolset([shop().prefixed("a"), FunctionToolset([order])]),
            ["a_price", "a_order", "order"],
        ),
        (lambda: WrapperToolset(shop()), ["price", "order"]),
        (lambda: shop().prepared(lambda ctx, tools: tools[:1]), ["price"]),
        (
            lambda: [shop().prefixed("a"), [order], {"buy": order}, typed_tools(picky)],
            ["a_price", "a_order", "order", "buy", "picky"],
        ),
        (lambda: pydantic_ai.Tool(order, name="purchase", prepare=lambda ctx, tool: tool), ["purchase"]),
        (lambda: pydantic_ai.Tool(order, prepare=lambda ctx, tool: None), []),
    ],
    ids=[
        "prefixed",
        "renamed",
        "filtered",
        "combined",
        "wrapper",
        "prepared",
        "nested",
        "tool",
        "tool-left-out",
    ],
)
async def test_every_kind_of_toolset_is_listed_under_its_own_names(
    toolset: Callable[[], Any], offered: list[str]
) -> None:
    assert await names(toolset()) == offered


@requirement("tools:pydantic-ai")
async def test_a_call_goes_through_every_layer_of_a_toolset() -> None:
    seen: list[str] = []

    @dataclass
    class Watching(WrapperToolset[Any]):
        async def call_tool(
            self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
        ) -> Any:
            seen.append(f"{name} of {ctx.tool_call_id} in {ctx.run_id} {ctx.metadata}")
            return await super().call_tool(name, tool_args, ctx, tool)

    layers = CombinedToolset([Watching(shop()).renamed({"cost": "price"}).prefixed("my")])
    assert await use(Toolset(layers, deps=Shop("pounds")), "my_cost", article="nut") == "1 nut: pounds"
    assert seen == ["price of c in e {'key': 'e:c', 'owner': 'local', 'depth': 1}"]


@requirement("tools:marks")
async def test_what_a_toolset_asks_for_is_in_the_marks() -> None:
    asking = CombinedToolset(
        [
            shop(requires_approval=True, sequential=True).prefixed("all"),
            shop()
            .approval_required(lambda ctx, tool, arguments: arguments["article"] == "car")
            .prefixed("some"),
            shop(timeout=3).filtered(lambda ctx, tool: tool.name == "order"),
        ]
    )
    async with asyncio.timeout(PATIENCE), Toolset(asking, deps=Shop("euros")) as tools:
        bought = await tools["some_order"].call({"article": "car"}, CONTEXT)
    assert marks(tools) == {
        "all_price": "needs_approval sequential",
        "all_order": "needs_approval sequential",
        "some_price": "needs_approval",
        "some_order": "needs_approval",
        "order": "timeout",
    }
    assert tools["order"].timeout == 3
    assert bought == "car ordered"  # a call that runs is one that somebody approved


@requirement("tools:marks")
async def test_marks_are_given_to_all_tools_or_to_those_whose_names_fit() -> None:
    mine = Toolset(shop(), read_only=["pri*"], idempotent="order", needs_approval=("order",), timeout=7)
    async with asyncio.timeout(PATIENCE), Toolset(mine, typed_tool(picky, sequential=True)) as tools:
        assert marks(tools) == {
            "price": "read_only timeout",
            "order": "idempotent needs_approval timeout",
            "picky": "sequential",
        }


def picky(word: str) -> str:
    """Takes one word."""
    raise ModelRetry(f"{word!r} is no word: give a real one.")


def hopeless() -> str:
    raise ToolFailed("There is no such shelf.")


def asks_late() -> str:
    raise ApprovalRequired


def defers() -> str:
    raise CallDeferred


def no_bombs(ctx: RunContext[Any], article: str) -> None:
    if article == "bomb":
        raise ModelRetry("No bombs.")


@requirement("tools:pydantic-ai")
@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (picky, {"word": "x1"}, "'x1' is no word: give a real one."),
        (
            picky,
            {"word": 1},
            "Wrong arguments: word: Input should be a valid string. Correct them and call again.",
        ),
        (hopeless, {}, "There is no such shelf."),
        (
            asks_late,
            {},
            "asks_late asks for an approval only once it is called: its owner must mark it needs_approval.",
        ),
        (defers, {}, "defers leaves its result to somebody else, and nobody is there: do without it."),
        (pydantic_ai.Tool(order, args_validator=no_bombs), {"article": "bomb"}, "No bombs."),
    ],
)
async def test_what_a_tool_refuses_is_a_tool_error_in_its_own_words(
    function: Any, arguments: dict[str, Any], said: str
) -> None:
    for toolset in (Toolset(FunctionToolset([function])), Toolset(typed_tool(function))):
        async with asyncio.timeout(PATIENCE), toolset as tools:
            (tool,) = tools.values()
            with pytest.raises(ToolFailure) as caught:
                await tool.call(arguments, CONTEXT)
        assert str(caught.value) == said


@requirement("tools:pydantic-ai")
async def test_what_a_tool_itself_finds_invalid_is_no_fault_of_the_arguments() -> None:
    def reads() -> int:
        return TypeAdapter(int).validate_python("seven")

    with pytest.raises(ValidationError, match="should be a valid integer"):
        await use(Toolset(reads), "reads")


@requirement("tools:pydantic-ai")
async def test_a_model_that_gave_too_much_up_ends_within_the_runs_own_budget() -> None:
    """`max_retries` is Pydantic AI's; here each refusal is a tool error, and the run goes on."""
    script = [Answer(calls=[Call("picky", {"word": "x"}, id=f"p{n}")]) for n in range(3)]
    async with (
        asyncio.timeout(PATIENCE),
        Toolset(FunctionToolset([picky], max_retries=0)) as tools,
        running([*script, Answer(text="Enough.")], tools, schemas=[]) as (executor, _),
    ):
        events = await run(executor, max_tool_errors=3)
    assert lines(events)[-2:] == [
        "tool_result p2: TOOL_ERROR: 'x' is no word: give a real one.",
        "final_answer answer final: Enough.",
    ]


@requirement("tools:pydantic-ai")
@pytest.mark.parametrize(
    ("given", "text", "shown", "record"),
    [
        (ToolReturn("plain"), None, 0, "plain"),
        (
            ToolReturn(
                {"n": 1},
                content=["see", BinaryContent(PIXEL, media_type="image/png")],
                metadata={"who": "me"},
            ),
            '{"n":1}\nsee\n[image/png, 8 bytes]',
            1,
            ["return_value", "content", "metadata"],
        ),
        (ToolReturn("seen", content="More of it."), "seen\nMore of it.", 0, ["return_value", "content"]),
        (BinaryContent(PIXEL, media_type="image/png"), "[image/png, 8 bytes]", 1, None),
        (
            ["two", CachePoint(), TextContent("parts"), ImageUrl("https://example.com/a.png")],
            "two\nparts\n[file: https://example.com/a.png]",
            0,
            None,
        ),
    ],
)
async def test_what_a_tool_gives_beside_text_is_for_the_model_and_on_record(
    given: Any, text: str | None, shown: int, record: Any
) -> None:
    async def gives() -> Any:
        return given

    output = await use(Toolset(gives), "gives")
    if text is None:
        assert output == record
        return
    assert isinstance(output, ToolOutput)
    assert (output.text, len(output.content)) == (text, shown)
    assert (list(output.result) if record else output.result) == (record or given)


@requirement("tools:pydantic-ai")
async def test_a_picture_that_a_tool_made_is_shown_to_the_model() -> None:
    async def draw() -> BinaryContent:
        """Draw."""
        return BinaryContent(PIXEL, media_type="image/png")

    script = [Answer(calls=[Call("draw", {}, id="d")]), Answer(text="A dot.")]
    async with (
        asyncio.timeout(PATIENCE),
        Toolset(FunctionToolset([draw])) as tools,
        running(script, tools, schemas=[]) as (executor, fake),
    ):
        events = await run(executor)
    assert events[2].content == "[image/png, 8 bytes]"
    told = str(fake.bodies[1]["messages"])
    assert "data:image/png;base64,iVBORw0KGgo=" in told


class Connected(WrapperToolset[Any]):
    """A toolset that works only while it is entered, and says how often it was."""

    def __init__(self, wrapped: AbstractToolset[Any]) -> None:
        super().__init__(wrapped)
        self.said: list[str] = []
        self.tasks: list[asyncio.Task[Any] | None] = []

    async def __aenter__(self) -> Any:
        self.said.append("entered")
        self.tasks.append(asyncio.current_task())
        return self

    async def __aexit__(self, *args: Any) -> bool | None:
        self.said.append("left")
        self.tasks.append(asyncio.current_task())
        return None

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return self

    async def call_tool(self, *args: Any) -> Any:
        assert self.said[-1] == "entered"
        return await super().call_tool(*args)


@requirement("tools:lifetime")
async def test_a_toolset_is_open_for_as_long_as_the_executor_and_left_in_the_task_that_entered_it() -> None:
    connected = Connected(FunctionToolset([order]))
    script = [Answer(calls=[Call("order", {"article": "nut"}, id="o")]), Answer(text="Done.")] * 2
    async with asyncio.timeout(PATIENCE):
        async with (
            Toolset(CombinedToolset([_same(connected)])) as tools,
            running(script, tools, schemas=[]) as (executor, _),
        ):
            first, second = await run(executor), await run(executor)
        assert [lines(first)[2], lines(second)[2]] == ["tool_result o: nut ordered"] * 2
    assert connected.said == ["entered", "left"]
    assert connected.tasks[0] is connected.tasks[1] is not asyncio.current_task()


def _same(toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    """A toolset as one that no copy is made of: not of a kind that is taken apart."""

    class Plain(AbstractToolset[Any]):
        @property
        def id(self) -> str | None:
            return None

        async def __aenter__(self) -> Any:
            return await toolset.__aenter__()

        async def __aexit__(self, *args: Any) -> bool | None:
            return await toolset.__aexit__(*args)

        async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
            return await toolset.get_tools(ctx)

        async def call_tool(
            self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
        ) -> Any:
            return await toolset.call_tool(name, tool_args, ctx, tool)

    return Plain()


@requirement("tools:lifetime")
async def test_one_toolset_may_be_opened_again_and_again() -> None:
    toolset = Toolset(shop())
    for _ in range(2):
        async with asyncio.timeout(PATIENCE), toolset as tools:
            assert list(tools) == ["price", "order"]


@requirement("tools:lifetime")
async def test_a_context_of_ones_own_gives_tools_and_is_left_at_the_end() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def connected() -> AsyncIterator[list[Any]]:
        said.append("open")
        yield [order, shop().prefixed("my")]
        said.append("closed")

    assert await names(connected()) == ["order", "my_price", "my_order"]
    assert said == ["open", "closed"]


@requirement("tools:lifetime")
@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("open", "toolset _AsyncGeneratorContextManager has ended by itself: ExceptionGroup"),
        ("closing", "did not close well: OSError: gone"),
    ],
)
async def test_a_toolset_whose_connection_ends_takes_nobody_with_it(
    caplog: pytest.LogCaptureFixture, when: str, said: str
) -> None:
    lost, told = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def dying() -> AsyncIterator[list[Any]]:
        async def connection() -> None:
            await lost.wait()
            raise OSError("gone")

        try:
            async with asyncio.TaskGroup() as group:
                if when == "open":
                    group.create_task(connection())
                yield [order]
        finally:
            asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, told.set)
        await connection()

    async with asyncio.timeout(PATIENCE):
        async with Toolset(dying()) as tools:
            lost.set()
            if when == "open":
                await told.wait()
                assert said in caplog.text
            assert await tools["order"].call({"article": "nut"}, CONTEXT) == "nut ordered"
    assert said in caplog.text


@requirement("tools:lifetime")
async def test_a_toolset_that_does_not_open_in_time_is_given_up() -> None:
    gone = asyncio.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            gone.set()

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(TimeoutError, match=r"not open after 0\.01 s"):
            async with held(slow(), "slow", open_limit=0.01):
                raise AssertionError
        await gone.wait()


class Broken(FunctionToolset[Any]):
    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        raise OSError("no line to the shop")


external = ExternalToolset(
    [ToolDefinition(name="fax", parameters_json_schema={"type": "object", "properties": {}})]
)


@requirement("tools:refused")
@pytest.mark.parametrize(
    ("toolset", "code", "said"),
    [
        (
            lambda: Toolset(5),
            "unknown_kind",
            "something of type int is no tool: give functions, Tools, toolsets of",
        ),
        (lambda: Toolset("price"), "unknown_kind", "something of type str is no tool"),
        (lambda: Toolset(Shop), "unknown_kind", "something of type type is no tool"),
        (
            lambda: Toolset({"two": shop()}),
            "unknown_kind",
            "something of type FunctionToolset is 2 tools, not one",
        ),
        (lambda: Toolset(lambda x: x), "invalid_schema", "cannot be a typed tool: write a function (def)"),
        (lambda: Toolset(shop(), order), "name_clash", "two tools have one name, 'order': rename"),
        (
            lambda: Toolset(shop(), needs_approval=["oder"]),
            "unknown_name",
            "needs_approval names 'oder', and no tool is called so: there are price, order.",
        ),
        (
            lambda: Toolset(external),
            "external_tool",
            "fax is an external tool: its result would come from elsewhere",
        ),
        (lambda: Toolset(external.approval_required()), "external_tool", "fax is an external tool"),
        (
            lambda: Toolset(Broken()),
            "not_opened",
            "something of type Broken cannot be opened: OSError: no line to the shop",
        ),
        (
            lambda: Toolset(CombinedToolset([shop(), shop()])),
            "not_opened",
            "whose name conflicts with existing tool",
        ),
    ],
)
async def test_what_is_no_tool_is_refused_with_a_code_and_its_cure(
    toolset: Callable[[], Toolset], code: str, said: str
) -> None:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ToolsetError) as caught:
            async with toolset():
                raise AssertionError
    assert caught.value.code == code
    assert said in str(caught.value)


@requirement("tools:refused")
async def test_what_was_open_is_left_when_the_next_cannot_be_opened() -> None:
    connected = Connected(FunctionToolset([order]))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ToolsetError):
            async with Toolset(_same(connected), 5):
                raise AssertionError
    assert connected.said == ["entered", "left"]


@requirement("tools:refused")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            shop(),
            "not something of type FunctionToolset. A toolset is opened: async with Toolset(FunctionToolset(…))",
        ),
        (
            pydantic_ai.Tool(order, prepare=lambda ctx, tool: tool),
            "order has a `prepare` function, which must be awaited",
        ),
    ],
)
def test_what_must_be_awaited_is_no_typed_tool_and_the_error_says_where_it_goes(
    given: Any, said: str
) -> None:
    with pytest.raises(TypeError) as caught:
        typed_tools(given)
    assert said in str(caught.value)


@requirement("tools:refused")
async def test_an_executor_takes_what_a_toolset_gives_and_names_one_that_is_not_open() -> None:
    with pytest.raises(TypeError, match="tool_registry is of type Toolset: give functions by name"):
        AgenticLoopExecutor(Toolset(shop()), [])  # type: ignore[arg-type]
