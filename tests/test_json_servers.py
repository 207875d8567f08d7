"""JSON mode through LiteLLM at the servers of local models: what each of them is sent."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from executor.grammar import answer_grammar
from executor.json_form import instructions
from executor.outcomes import Call as RunCall
from executor.outcomes import Thought
from executor.providers import Providers
from tests.fake_models import FakeModels
from tests.fake_ollama import ollama
from tests.json_mode import calls, final, held_to, said
from tests.requirements import requirement
from tests.thinking import ADD, KEY, LEFT, WRITE, ask, ended

TOOLS = (ADD, WRITE)
GRAMMAR = answer_grammar(TOOLS, None)
SYSTEM = f"You add.\n\n{instructions(TOOLS, None)}"
FIRST = said(thought="I add.", calls=[{"name": "add", "arguments": {"a": 1}}])
LAST = said(thought="Done.", answer="3")
HEARD = f"Result of call (add):\n3\n\n{LEFT}"
SPOKEN = '{"thought": "I add.", "calls": [{"id": "call", "name": "add", "arguments": {"a": 1}}]}'
MESSAGES = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "What is 1 + 2?"},
    {"role": "assistant", "content": SPOKEN},
    {"role": "user", "content": HEARD},
]


async def two_turns(model: str) -> tuple[Thought, Thought]:
    """A call, and the answer that is made of its result."""
    providers = Providers()
    try:
        async with asyncio.timeout(60):
            thinker = providers.thinker_for(model, tool_mode="json")
            first = await thinker.think(ask())
            return first, await thinker.think(ask(ended(first, "3")))
    finally:
        await providers.aclose()


def check(first: Thought, last: Thought) -> None:
    assert first.calls == (RunCall(id="call", name="add", arguments={"a": 1}, retry_safe=True),)
    assert (first.text, last.text, last.reasoning, last.bad) == ("I add.", "3", "Done.", None)


@requirement("model:json")
@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai/q", "OPENAI_BASE_URL"),
        ("openai-chat:q", "OPENAI_BASE_URL"),
        ("hosted_vllm/q", "HOSTED_VLLM_API_BASE"),
        ("lm_studio/q", "LM_STUDIO_API_BASE"),
        ("llamafile/q", "LLAMAFILE_API_BASE"),
    ],
)
async def test_servers_that_speak_openai_get_the_schema_as_response_format(
    model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeModels([calls(("add", {"a": 1}), thought="I add."), final("3", "Done.")]) as fake:
        monkeypatch.setenv(variable, fake.openai_url)
        check(*await two_turns(model))
    sent = {**fake.bodies[1]}
    assert sent.pop("stream", False) is False
    assert sent == {"model": "q", "messages": MESSAGES, "response_format": held_to(GRAMMAR)}


@requirement("model:json:formats")
@pytest.mark.parametrize(
    ("model", "held"),
    [("gemini/gemini-2.5-flash", GRAMMAR), ("google:gemini-2.5-flash", None)],
)
async def test_where_a_format_cannot_be_sent_the_prompt_does_it(
    model: str, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    async with FakeModels([calls(("add", {"a": 1}), thought="I add."), final("3", "Done.")]) as fake:
        for variable in ("GEMINI_API_BASE", "GOOGLE_GEMINI_BASE_URL"):
            monkeypatch.setenv(variable, fake.url)
        check(*await two_turns(model))
    assert [body["generationConfig"].get("response_json_schema") for body in fake.bodies] == [held, held]
    assert [content["role"] for content in fake.bodies[1]["contents"]] == ["user", "model", "user"]


@requirement("model:json")
async def test_ollamas_chat_gets_the_schema_as_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    with ollama(FIRST, LAST) as fake:
        monkeypatch.setenv("OLLAMA_API_BASE", fake.url)
        check(*await two_turns("ollama_chat/q:0.5b"))
    path, sent = fake.bodies[1]
    messages = [{key: m[key] for key in ("role", "content")} for m in sent.pop("messages")]
    assert (path, messages) == ("/api/chat", MESSAGES)
    assert sent == {"model": "q:0.5b", "options": {}, "stream": False, "format": GRAMMAR}


@requirement("model:json")
async def test_ollamas_completion_gets_the_schema_as_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    with ollama(FIRST, LAST) as fake:
        monkeypatch.setenv("OLLAMA_API_BASE", fake.url)
        check(*await two_turns("ollama/q:0.5b"))
    path, sent = fake.bodies[1]
    assert (path, sent["format"]) == ("/api/generate", GRAMMAR)
    told = [sent["prompt"].find(text) for text in (SYSTEM, "What is 1 + 2?", SPOKEN, HEARD)]
    assert told == sorted(told) and told[0] >= 0


@requirement("model:json:formats")
@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("model", ["ollama/q", "ollama_chat/q"])
async def test_an_ollama_that_takes_no_schema_is_asked_for_json(
    model: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ollama(FIRST, LAST, refuses=status) as fake:
        monkeypatch.setenv("OLLAMA_API_BASE", fake.url)
        check(*await two_turns(model))
    assert [body["format"] for _, body in fake.bodies] == [GRAMMAR, "json", "json"]


async def test_ollama_is_asked_about_a_model_once_and_never_while_the_event_loop_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from litellm import module_level_client

    askers: list[str] = []
    post: Any = module_level_client.post

    def asked(*arguments: Any, **options: Any) -> Any:
        askers.append(threading.current_thread().name)
        return post(*arguments, **options)

    monkeypatch.setattr(module_level_client, "post", asked)
    with ollama(FIRST, LAST) as fake:
        monkeypatch.setenv("OLLAMA_API_BASE", fake.url)
        check(*await two_turns("ollama_chat/once"))
    assert fake.shown == len(askers) == 1
    assert threading.main_thread().name not in askers
