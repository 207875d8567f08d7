"""`loopwright demo`, as a newcomer runs it: everything in it is real but the model."""

from pathlib import Path

import pytest

from server.demo import chosen_model, example_server
from tests.children import loopwright
from tests.requirements import requirement


@requirement("demo:end-to-end")
async def test_the_demo_finishes_a_real_job_and_says_what_next(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("def main():\n    pass\n", encoding="utf-8")
    async with loopwright("demo", "--folder", str(tmp_path), cwd=tmp_path) as child:
        answer = await child.output()
        code = await child.ended()
    said = "\n".join(child.said)
    assert code == 0, said
    assert answer == (
        "Python in this folder: 1 text files, 2 lines, 3 words.\n"
        "Programs begin here:\n"
        "tool.py:1: def main():\n"
    )
    assert "the model is a script and no LLM; the rest is real." in child.said[0]
    for shown in (
        "An MCP client calls execute_task",
        "files__search(^(async )?def main) done in",  # progress, as it came
        "Its history: GET /api/v1/agent/executions/",
        "1     1     files__count",
        "mcp-config --client claude",
        "serve, then: curl -N",
        "from executor import AgenticLoopExecutor",
    ):
        assert shown in said


async def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    async with loopwright("demo", "--folder", "nowhere", cwd=tmp_path) as child:
        assert await child.ended() == 2
    assert child.said == [f"loopwright: --folder: {tmp_path / 'nowhere'} is no folder."]


@pytest.mark.parametrize(
    ("environment", "model"),
    [
        ({"OPENAI_API_KEY": "x", "GEMINI_API_KEY": "x"}, "gpt-5.4-mini"),
        ({"ANTHROPIC_API_KEY": "x"}, "anthropic/claude-haiku-4-5"),
        ({"GEMINI_API_KEY": "x", "OPENAI_API_KEY": ""}, "gemini/gemini-flash-latest"),
        ({"ANTHROPIC_API_KEY": "x", "LOOPWRIGHT_MODEL": "ollama/llama3"}, "ollama/llama3"),
    ],
)
def test_the_demo_asks_the_provider_whose_key_is_there(environment: dict[str, str], model: str) -> None:
    assert chosen_model(environment) == model
    assert chosen_model({}).startswith("scripted:")
    assert example_server().name == "files_server.py"
