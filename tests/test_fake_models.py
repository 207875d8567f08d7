"""The fake providers as a program, for tests that kill processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

PROGRAM = Path(__file__).with_name("fake_models.py")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of a fake with two scripted turns, and its log of requests."""
    script, log = tmp_path / "script.yaml", tmp_path / "requests.jsonl"
    script.write_text("- calls: [{name: add, arguments: {a: 1}, id: x}]\n- text: done\n", encoding="utf-8")
    command = [sys.executable, str(PROGRAM), "--port", "0", "--script", str(script), "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1/chat/completions", log
        process.kill()


def test_a_repeated_request_gets_the_answer_of_its_turn_and_each_request_is_logged(
    served: tuple[str, Path],
) -> None:
    url, log = served
    first: list[dict[str, Any]] = [{"role": "user", "content": "1 + 2?"}]
    second = [*first, {"role": "assistant", "content": None}, {"role": "tool", "content": "3"}]
    answers = [
        httpx2.post(url, json={"messages": messages}, timeout=10, trust_env=False).json()["choices"][0]
        for messages in (first, first, second)
    ]
    assert [answer["finish_reason"] for answer in answers] == ["tool_calls", "tool_calls", "stop"]
    assert answers[2]["message"]["content"] == "done"
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [(line["n"], line["dialect"], len(line["body"]["messages"])) for line in lines] == [
        (1, "openai", 1),
        (2, "openai", 1),
        (3, "openai", 3),
    ]
