"""One answer of a model in JSON mode, read: habits that can mean one thing, and what comes back to the model."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart

from executor.answers import thought
from executor.json_answers import read_answer
from executor.json_live import LiveAnswer
from executor.output_tool import output_tool
from tests.json_mode import said
from tests.requirements import requirement
from tests.thinking import ask

ADD = {"name": "add", "arguments": {"a": 1}}
_QUOTED = 'a call among words may be a quotation: a call is made by an object with "calls" alone'
ONE = said(thought="I look.", calls=[ADD])


def read(text: str, *, free: bool = False, **response: Any) -> tuple[list[Any], str | None]:
    """The parts that an answer comes to, and why it cannot be read."""
    given = ModelResponse(parts=[TextPart(text)], **response)
    found, why = read_answer(given, names={"add", "write"}, output=None, free=free)
    return [short(part) for part in found.parts], why


def short(part: Any) -> Any:
    match part:
        case ToolCallPart():
            return part.tool_name, part.args
        case ThinkingPart():
            return f"thinks: {part.content}"
        case _:
            return part.content


@requirement("model:json:unreadable")
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (ONE, ["I look.", ("add", {"a": 1})]),
        (f"```json\n{ONE}\n```", ["I look.", ("add", {"a": 1})]),
        (f"Sure, I call it.\n{said(calls=[ADD])}\nThat is all.", ["Sure, I call it. That is all.", ("add", {"a": 1})]),
        (f"{ONE}\n\n{ONE}", ["I look.", ("add", {"a": 1})]),
        (said(calls=ADD), [("add", {"a": 1})]),
        (said(calls=[ADD, ADD]), [("add", {"a": 1})] * 2),
        (said(**ADD), [("add", {"a": 1})]),
        (said(tool="add", args={"a": 1}), [("add", {"a": 1})]),
        (said(name="write", parameters={"a": 2}), [("write", {"a": 2})]),
        (said(calls=[{"name": "add"}]), [("add", {})]),
        (said(calls=[{"name": "add", "arguments": '{"a": 1}'}]), [("add", '{"a": 1}')]),
        (said(calls=[{"name": "add", "arguments": [1]}]), [("add", "[1]")]),
        (said(tool_calls=[{"type": "function", "function": ADD}]), [("add", {"a": 1})]),
        (f"<tool_call>\n{said(**ADD)}\n</tool_call>\n<tool_call>\n{said(name='write')}\n</tool_call>",
         [("add", {"a": 1}), ("write", {})]),
        (f"[{said(**ADD)}, {said(name='write')}]", [("add", {"a": 1}), ("write", {})]),
        (said(thought="Hm.", calls=[ADD], answer="Soon."), ["Hm.\n\nSoon.", ("add", {"a": 1})]),
        (said(calls=[{"name": "nope", "arguments": {}}]), [("nope", {})]),
        (said(thought="Done.", answer="3"), ["thinks: Done.", "3"]),
        (said(answer="3"), ["3"]),
        (said(answer="3", calls=[]), ["3"]),
        (said(answer=""), [""]),
        (said(answer=None), [""]),
        (said(answer=42), ["42"]),
        (said(answer={"n": 1}), ['{"n": 1}']),
        (said(final_answer="3"), ["3"]),
        (f"The answer is: {said(answer='3')}", ["3"]),
        ('{"answer": "two\nlines"}', ["two\nlines"]),
        ('{"answer": "a \\ud800"}', ["a \ufffd"]),
        (f"Use {{a}} and {{b: 1}}: {said(answer='3')}", ["3"]),
        (f"<think>Hm, {{}}.</think>{said(answer='3')}", ["thinks: Hm, {}.", "3"]),
        (f"Hm.\n</think>\n\n{said(answer='3')}", ["thinks: Hm.", "3"]),
        (said(answer="The tag </think> ends it."), ["The tag </think> ends it."]),
        (f"<think>Hm.</think>\n```json\n{said(answer='So </think> it is.')}```", ["thinks: Hm.", "So </think> it is."]),
        ("<think>{</think>{}</think>" + said(answer="3"), ["thinks: {{}", "3"]),
        (f"I look. <tool_call>{said(**ADD)}</tool_call>", ["I look.", ("add", {"a": 1})]),
        ("", []),
        ("  \n", []),
        ("<think>Hm.</think>", ["thinks: Hm."]),
    ],
)  # fmt: skip
def test_what_can_mean_only_one_thing_is_taken(text: str, parts: list[Any]) -> None:
    assert read(text) == (parts, None)


@requirement("model:json:unreadable")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("I will add.", 'there is no JSON object with "calls" or "answer" in it'),
        ('{"a": 1}', 'there is no JSON object with "calls" or "answer" in it'),
        (said(name="nope", arguments={}), 'there is no JSON object with "calls" or "answer" in it'),
        (said(calls=[]), 'its "calls" are empty, and it has no "answer"'),
        (said(calls=[{"arguments": {}}]), 'a call in it has no "name"'),
        (said(calls=["add"]), 'a call in it has no "name"'),
        (said(answer="3") + said(answer="4"), "there are 2 JSON objects in it"),
        (ONE + said(answer="4"), "there are 2 JSON objects in it"),
        (f"The page says {said(**ADD)}, which I won't do.", _QUOTED),
        (f"{said(**ADD)}\nThat is what it says.", _QUOTED),
        (f"<think>It says {said(calls=[ADD])}", "it thinks without an end (</think>)"),
        ('{"calls": [{"name": "add"}', "its JSON is broken (Expecting ',' delimiter at character 26)"),
        (f'{{"thought": "a" "b", "calls": [{said(**ADD)}]}}',
         "its JSON is broken (Expecting ',' delimiter at character 16)"),
        ('{"answer": "3", "answer": "4"}', "a key stands twice in one object"),
        ('{"calls": [{"name": "add", "arguments": {"a": NaN}}]}', "NaN is no JSON"),
        ('{"answer": ' + "[" * 100 + "]" * 100 + "}", "nested more than 64 levels deep"),
        ('{"answer": ' + "[" * 100_000, "its JSON is broken (too deep, or a number too long)"),
    ],
)  # fmt: skip
def test_anything_else_comes_back_with_the_reason(text: str, why: str) -> None:
    parts, told = read(text)
    assert parts == [text]
    assert told == (
        f"Your answer could not be read: {why}. Answer with one JSON object and nothing else: "
        '{"thought": …, "calls": […]} to use tools, or {"thought": …, "answer": …} when you are done.'
    )
    assert read(text, free=True) == ([text], None)


@requirement("model:json:unreadable")
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"thought": "Hm.", "answer": "half an ans', ["half an ans"]),
        ('{"thought": "Hm.", "calls": [{"name": "ad', ["Hm."]),
        ('{"calls": [{"name": "ad', []),
        ("Well, I", ["Well, I"]),
        ("[[", ["[["]),
    ],
)
def test_what_was_cut_calls_nothing_and_leaves_its_words(text: str, parts: list[Any]) -> None:
    assert read(text, finish_reason="length") == (parts, None)


def test_calls_that_the_server_has_read_itself_are_calls() -> None:
    given = ModelResponse(parts=[TextPart("Hm."), ToolCallPart("add", '{"a": 1}', "x")])
    assert read_answer(given, names={"add"}, output=None, free=False) == (given, None)


def test_call_ids_of_the_models_own_are_kept_and_made_unique() -> None:
    calls = [{"id": "x", **ADD}, {"id": "x", **ADD}, {"id": 7, **ADD}, ADD]
    given = ModelResponse(parts=[TextPart(said(calls=calls))])
    found, _ = read_answer(given, names={"add"}, output=None, free=False)
    assert [call.id for call in thought(found, ask()).calls] == ["x", "x__2", "call", "call__2"]


PIECES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["{", "}", "[", "]", '"', ",", ":", "\\", "</think>", "```", ONE, said(answer="3")]),
    st.sampled_from(
        ['"calls"', '"answer"', '"name"', '"arguments"', '"function"', "null", "add", "1e999", "NaN"]
    ),
)


@requirement("model:json:unreadable")
@given(
    pieces=st.lists(PIECES, max_size=12),
    finish=st.sampled_from([None, "length"]),
    schema=st.sampled_from([None, {"type": "object"}, {"type": "string"}]),
)
def test_nothing_that_a_model_writes_raises(pieces: list[str], finish: Any, schema: Any) -> None:
    given = ModelResponse(parts=[TextPart("".join(pieces))], finish_reason=finish)
    output = None if schema is None else output_tool(schema, (), called=False)
    found, why = read_answer(given, names={"add"}, output=output, free=False)
    thought(found, ask(output_schema=schema), output, unreadable=why)


@given(
    values=st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(["calls", "answer", "name", "function", "arguments", "id", "thought"]), inner, max_size=4
        ),
        max_leaves=12,
    )
)  # fmt: skip
def test_no_json_that_a_model_writes_raises(values: Any) -> None:
    given = ModelResponse(parts=[TextPart(said(calls=values)), TextPart(said(x=values))])
    found, why = read_answer(given, names={"add", ""}, output=None, free=False)
    thought(found, ask(), unreadable=why)


def test_live_pieces_are_words_and_no_json() -> None:
    pieces: list[dict[str, Any]] = []
    live = LiveAnswer(pieces.append)
    live({"type": "thinking", "delta": "Hm."})
    for piece in (
        '```{"tho',
        'ught": "I l',
        'ook.", "answer": "4',
        "2 \\u00",
        'e9", "more": [1',
        "]}",
        "```",
    ):
        live({"type": "text", "delta": piece})
    assert pieces == [
        {"type": "thinking", "delta": "Hm."},
        {"type": "thinking", "delta": "I l"},
        {"type": "thinking", "delta": "ook."},
        {"type": "text", "delta": "4"},
        {"type": "text", "delta": "2 "},
        {"type": "text", "delta": "é"},
    ]


LETTERS = st.text(alphabet=st.sampled_from([*'a\n"\\é😀{}/\u2028\tu']), max_size=30)


@given(
    thought=LETTERS, answer=LETTERS, ascii_only=st.booleans(), cuts=st.lists(st.integers(1, 6), min_size=1)
)
def test_live_pieces_come_to_the_words_wherever_the_text_is_cut(
    thought: str, answer: str, ascii_only: bool, cuts: list[int]
) -> None:
    told = {"thinking": "", "text": ""}

    def tell(piece: dict[str, Any]) -> None:
        told[piece["type"]] += piece["delta"]

    live, at = LiveAnswer(tell), 0
    text = json.dumps({"thought": thought, "answer": answer}, ensure_ascii=ascii_only)
    for size in itertools.cycle(cuts):
        live({"type": "text", "delta": text[at : at + size]})
        if (at := at + size) >= len(text):
            break
    assert told == {"thinking": thought, "text": answer}


def test_half_a_character_in_a_piece_ends_no_run() -> None:
    pieces: list[dict[str, Any]] = []
    live = LiveAnswer(pieces.append)
    for delta in ('{"answer": "a', "\ud83d", "\ude00", "\\ud83d", '\\ude00"', "}"):
        live({"type": "text", "delta": delta})
    assert "".join(piece["delta"] for piece in pieces) == "a\ufffd\ufffd😀"


def test_the_time_for_a_live_piece_does_not_grow_with_the_answer() -> None:
    reads = 0

    def tell(piece: dict[str, Any]) -> None:
        nonlocal reads
        reads += len(piece["delta"])

    live = LiveAnswer(tell)
    began = time.thread_time()
    live({"type": "text", "delta": '{"answer": "'})
    for _ in range(100_000):
        live({"type": "text", "delta": "word\\n"})
    assert reads == 500_000
    assert time.thread_time() - began < 30  # read whole for each piece it takes ten minutes
