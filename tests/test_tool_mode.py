"""The setting that says which models are told of tools in the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from executor import AgenticLoopExecutor
from executor.tool_mode import json_models, mode_of
from server.settings import SettingsError, read_settings
from tests.requirements import requirement


@requirement("model:json")
@pytest.mark.parametrize(
    ("setting", "json", "native"),
    [
        ("native", [], ["gpt-4o", "ollama/qwen2.5:0.5b"]),
        ("json", ["gpt-4o", "ollama/qwen2.5:0.5b", "openai-chat:x"], []),
        (
            "ollama/*, openai/qwen2.5-0.5b*",
            ["ollama/llama3:8b", "openai/qwen2.5-0.5b-instruct"],
            ["gpt-4o", "ollama_chat/x"],
        ),
        (("ollama/*", "lm_studio/*"), ["lm_studio/x"], ["gpt-4o"]),
        (["json"], ["gpt-4o"], []),
    ],
)
def test_a_setting_is_a_mode_for_all_or_the_globs_of_those_in_json(
    setting: Any, json: list[str], native: list[str]
) -> None:
    globs = json_models(setting)
    assert [mode_of(name, globs) for name in json] == ["json"] * len(json)
    assert [mode_of(name, globs) for name in native] == ["native"] * len(native)


@requirement("embed:mistakes")
@pytest.mark.parametrize(
    ("given", "fault", "told"),
    [
        (
            "jsn",
            ValueError,
            "tool_mode: 'jsn' is neither native nor json nor a glob of models such as ollama*.",
        ),
        ("", ValueError, "tool_mode: there is nothing in it."),
        (
            None,
            TypeError,
            "tool_mode: is no text: give 'native', 'json', or globs of models such as ('ollama*',).",
        ),
        (
            [1],
            TypeError,
            "tool_mode: is no text: give 'native', 'json', or globs of models such as ('ollama*',).",
        ),
    ],
)
def test_a_slip_is_named_at_construction(given: Any, fault: type[Exception], told: str) -> None:
    with pytest.raises(fault) as caught:
        AgenticLoopExecutor({}, [], tool_mode=given)
    assert str(caught.value) == told


@requirement("cli:errors")
def test_the_setting_is_read_and_a_slip_in_it_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read_settings().tool_mode == ("native",)
    monkeypatch.setenv("LOOPWRIGHT_TOOL_MODE", "ollama/*, lm_studio/*")
    assert read_settings().tool_mode == ("ollama/*", "lm_studio/*")
    monkeypatch.setenv("LOOPWRIGHT_TOOL_MODE", "Json")
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert str(caught.value) == (
        "LOOPWRIGHT_TOOL_MODE cannot be used ('Json' is neither native nor json nor a glob of models such as "
        "ollama*): set it to native, json (for models that cannot call tools), or globs of the models that get json, "
        "e.g. ollama*,lm_studio/*."
    )
