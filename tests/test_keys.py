"""Whoever has set no key is told so at once, with the variable, the file and the other way."""

import subprocess
import sys
from pathlib import Path

import pytest

from executor.keys import missing_keys
from executor.providers import Providers
from executor.think import ModelFailure
from server.notices import key_cure, no_key, shown
from server.settings import Settings, config_folder
from tests.children import loopwright
from tests.requirements import requirement
from tests.thinking import ask

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("model", "there", "missing"),
    [
        ("gpt-4o", {}, ("OPENAI_API_KEY",)),
        ("gpt-4o", {"OPENAI_API_KEY": ""}, ("OPENAI_API_KEY",)),
        ("gpt-4o", {"OPENAI_API_KEY": "x"}, ()),
        ("gpt-4o", {"OPENAI_BASE_URL": "http://127.0.0.1"}, ()),
        ("ft:gpt-4o:me::1", {}, ("OPENAI_API_KEY",)),
        ("o3-mini", {}, ("OPENAI_API_KEY",)),
        ("openai/gpt-4o", {}, ("OPENAI_API_KEY",)),
        ("openai-chat:gpt-4o", {}, ("OPENAI_API_KEY",)),
        ("anthropic/claude-x", {"OPENAI_API_KEY": "x"}, ("ANTHROPIC_API_KEY",)),
        ("anthropic/claude-x", {"ANTHROPIC_AUTH_TOKEN": "x"}, ()),
        ("anthropic:claude-x", {}, ("ANTHROPIC_API_KEY",)),
        ("gemini/gemini-x", {}, ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
        ("google:gemini-x", {"GOOGLE_API_KEY": "x"}, ()),
        ("ollama/llama3:8b", {}, ()),
        ("bedrock:claude", {}, ()),
        ("gpt-oss-120b", {}, ()),
        ("unheard-of", {}, ()),
        ("scripted:x.yaml", {}, ()),
    ],
)
def test_a_key_is_called_missing_only_where_it_certainly_is(
    model: str, there: dict[str, str], missing: tuple[str, ...]
) -> None:
    assert missing_keys(model, there) == missing


@pytest.mark.parametrize("model", ["gpt-4o", "anthropic:claude-x", "deepseek:chat"])
async def test_a_models_failure_says_what_the_operator_can_do(model: str) -> None:
    providers = Providers(key_cure=lambda model, variables: f"ask Ann for {', '.join(variables)}")
    with pytest.raises(ModelFailure) as caught:
        await providers.thinker(model).think(ask(model=model))
    await providers.aclose()

    variable = {"gpt-4o": "OPENAI", "anthropic:claude-x": "ANTHROPIC", "deepseek:chat": "DEEPSEEK"}[model]
    assert str(caught.value) == f"{model}: no API key: ask Ann for {variable}_API_KEY."


def test_a_missing_key_is_told_without_loading_what_takes_seconds() -> None:
    program = (
        "import asyncio, sys\n"
        "from executor import AgenticLoopExecutor, TaskRequest\n"
        "async def main():\n"
        "    async with AgenticLoopExecutor({}, []) as executor:\n"
        "        return [event.content async for event in executor.execute(TaskRequest(prompt='Hello'))]\n"
        "print(asyncio.run(main())[-1])\n"
        "print(sorted({'litellm', 'pydantic_ai', 'openai'} & set(sys.modules)))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout.splitlines() == [
        "Model request failed: gpt-4o: no API key: set OPENAI_API_KEY in the environment.",
        "[]",
    ]


def test_the_cure_names_the_file_and_a_model_whose_key_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    place = shown(config_folder() / "env")
    begin = f"set OPENAI_API_KEY in the environment or in {place}, or use "
    assert key_cure("gpt-4o", ["OPENAI_API_KEY"]) == (
        f"{begin}another provider, e.g. LOOPWRIGHT_MODEL=anthropic/<model> with ANTHROPIC_API_KEY"
    )
    assert "LOOPWRIGHT_MODEL=gpt-4o with OPENAI_API_KEY" in key_cure("anthropic/x", ["ANTHROPIC_API_KEY"])

    monkeypatch.setenv("GEMINI_API_KEY", "x")
    assert key_cure("gpt-4o", ["OPENAI_API_KEY"]) == (
        f"{begin}the GEMINI_API_KEY that is set, with LOOPWRIGHT_MODEL=gemini/<model>"
    )
    assert no_key(Settings(model="gemini/x")) is None
    assert (no_key(Settings()) or "").startswith(f"gpt-4o has no API key: {begin}")


def test_the_users_own_folder_is_not_spelled_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert (shown(tmp_path / "a" / "env"), shown(Path("/b"))) == (
        str(Path("~") / "a" / "env"),
        str(Path("/b")),
    )


@requirement("cli:errors")
@pytest.mark.parametrize("command", ["serve", "stdio"])
async def test_what_the_agent_lacks_is_said_in_a_line_each_and_it_starts_all_the_same(
    command: str, tmp_path: Path
) -> None:
    options = ["--port", "0"] if command == "serve" else []
    environment = {"LOOPWRIGHT_DATABASE_URL": "sqlite:////x.db"}
    async with loopwright(
        command, "--ephemeral", *options, cwd=tmp_path, env=environment, stdin=True
    ) as child:
        await child.hears(r"^Everything is kept in memory: LOOPWRIGHT_DATABASE_URL is not used\.$")
        await child.hears(
            r"^No mcp\.json \(.+\), and none named by --config or .+: the agent has no tools\.$"
        )
        await child.hears(
            r"^gpt-4o has no API key: set OPENAI_API_KEY in the environment or in .+, or use another"
        )
        if command == "serve":
            await child.url()
        assert len([line for line in child.said if "the agent has no tools" in line]) == 1
