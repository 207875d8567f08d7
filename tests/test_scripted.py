"""A model that is a script: `scripted:PATH` plays YAML, for demos and tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from executor.outcomes import Slot, Thought, Turn
from executor.providers import Providers
from executor.think import Ask, Chapter, ModelFailure, Thinker
from executor.tools import Tool, ToolContext
from tests.requirements import requirement


async def _never(arguments: dict[str, Any], context: ToolContext) -> Any:
    raise AssertionError("a thinker runs no tools")


SEARCH = Tool(
    name="search", description="", parameters_schema={"type": "object"}, call=_never, read_only=True
)


def ask(*turns: Turn, **changes: Any) -> Ask:
    fields: dict[str, Any] = {
        "model": "scripted:x",
        "system_prompt": "",
        "earlier": (),
        "chapter": Chapter("Count.", turns),
        "tools": (SEARCH,),
        "used_ids": frozenset(),
        "left": "",
    }
    return Ask(**{**fields, **changes})


def ended(thought: Thought, *observations: str) -> Turn:
    calls = zip(thought.calls, observations, strict=True)
    return Turn(thought.message, [Slot(call=c, stage="ended", observation=o) for c, o in calls], thought.bad)


@pytest.fixture
def play(tmp_path: Path) -> Any:
    def thinker(script: str) -> Thinker:
        path = tmp_path / "script.yaml"
        path.write_text(script, encoding="utf-8")
        return Providers().thinker(f"scripted:{path}")

    return thinker


@requirement("model:scripted")
async def test_a_script_is_played_turn_by_turn_with_real_results_in_its_texts(play: Any) -> None:
    thinker = play(
        """
        turns:
          - reasoning: I look.
            text: Looking for {{ prompt }}
            calls:
              - {name: search, arguments: {pattern: "*.md"}, id: x}
              - {name: nope}
            usage: {input_tokens: 12, output_tokens: 5, cost_usd: 0.001}
          - text: "Last: {{last_observation}}; search: {{ observations.search }}; {{ observations.other }}"
        """
    )
    first = await thinker.think(ask())
    second = await thinker.think(ask(ended(first, "2 files", "TOOL_ERROR: unknown")))
    after = await thinker.think(ask(ended(first, "2 files", "TOOL_ERROR: unknown"), Turn(second.message)))
    assert (first.reasoning, first.text) == ("I look.", "Looking for Count.")
    assert [(c.id, c.name, c.arguments, c.retry_safe) for c in first.calls] == [
        ("x", "search", {"pattern": "*.md"}, True),
        ("call", "nope", {}, True),
    ]
    assert (first.input_tokens, first.output_tokens, first.cost_usd) == (12, 5, 0.001)
    assert second.text == "Last: TOOL_ERROR: unknown; search: 2 files; (nothing yet)"
    assert (after.text, after.calls) == (second.text, ())


async def test_the_turn_is_that_of_the_run_so_a_new_process_goes_on_where_the_last_one_stopped(
    play: Any,
) -> None:
    script = "[{text: one}, {text: two}]"
    first = await play(script).think(ask())
    again = await play(script).think(ask())
    second = await play(script).think(ask(Turn(first.message)))
    assert [first.text, again.text, second.text] == ["one", "one", "two"]


async def test_scripted_errors_come_one_per_attempt_and_then_the_answer(play: Any) -> None:
    thinker = play(
        """
        - errors:
            - {status: 429, message: slow down, retry_after: 2}
            - {status: 401, message: who are you}
          text: here I am
        - error: {status: 503}
          text: and here
        """
    )
    failures = []
    for _ in range(2):
        with pytest.raises(ModelFailure) as caught:
            await thinker.think(ask())
        failures.append((caught.value.retryable, caught.value.retry_after))
    first = await thinker.think(ask())
    with pytest.raises(ModelFailure, match="HTTP 503: a scripted failure"):
        await thinker.think(ask(Turn(first.message)))
    second = await thinker.think(ask(Turn(first.message)))
    assert failures == [(True, 2.0), (False, None)]
    assert [first.text, second.text] == ["here I am", "and here"]


async def test_last_words_are_scripted_or_empty(play: Any) -> None:
    turns = "turns: [{calls: [{name: search}]}]"
    assert (await play(turns).think(ask(closing=True))).text == ""
    closing = await play(f"{turns}\nclosing: {{text: so far}}").think(ask(closing=True))
    assert (closing.text, closing.bad) == ("so far", None)


async def test_cut_answers_and_malformed_arguments_can_be_scripted(play: Any) -> None:
    thinker = play("[{text: half, finish: length}, {calls: [{name: search, arguments: '{oops'}]}]")
    cut = await thinker.think(ask())
    malformed = await thinker.think(ask(Turn(cut.message, [], cut.bad)))
    assert (cut.bad_kind, cut.text) == ("cut", "half")
    assert (malformed.calls[0].arguments, malformed.calls[0].raw_arguments) == ({}, "{oops")


async def test_a_delay_is_waited_and_pieces_are_told(play: Any) -> None:
    pieces: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    await play("[{text: slow, reasoning: hm, delay: 0.05}]").think(ask(), pieces.append)
    assert loop.time() - began >= 0.05
    assert pieces == [{"type": "thinking", "delta": "hm"}, {"type": "text", "delta": "slow"}]


async def test_an_answer_as_data_can_be_scripted(play: Any) -> None:
    schema = {"type": "object", "required": ["n"]}
    thought = await play("[{calls: [{name: final_result, arguments: {n: 1}}]}]").think(
        ask(output_schema=schema)
    )
    assert (thought.output, thought.bad) == ({"n": 1}, None)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("turns: [", "no YAML: line 1: "),
        ("- text: a\n  texts: b", "turns.0.texts: no such field (did you mean text?)"),
        ("- calls: [{nme: x}]", "turns.0.calls.0.nme: no such field (did you mean name?)"),
        (
            "- usage: {zzz: 1}",
            "turns.0.usage.zzz: no such field (there are input_tokens, output_tokens, cost_usd)",
        ),
        ("{turns: [{text: a}], closing: {}, more: 1}", "more: no such field (there are turns, closing)"),
        ("# nothing yet", "the file is empty: write a list of turns, such as - text: Hello"),
        ("turns: []", "turns: List should have at least 1 item"),
        ("- calls: [{arguments: {}}]", "turns.0.calls.0.name: Field required"),
        (
            "- errors: [{status: 200}]",
            "turns.0.errors.0.status: Input should be greater than or equal to 400",
        ),
        ("- text: '{{ nonsense }}'", "turns.0.text: unknown placeholder {{ nonsense }}"),
        ("just text", "the file: is no script: write a list of turns, or a map with turns"),
    ],
)
async def test_a_faulty_script_is_refused_with_its_line_or_field(play: Any, script: str, reason: str) -> None:
    with pytest.raises(ModelFailure) as caught:
        await play(script).think(ask())
    assert reason in str(caught.value)
    assert not caught.value.retryable


async def test_a_missing_script_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFailure, match=r"nowhere\.yaml: No such file"):
        await Providers().thinker(f"scripted:{tmp_path}/nowhere.yaml").think(ask())
