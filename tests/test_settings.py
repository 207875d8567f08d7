"""Settings come from the command line, the environment or the user's env file; a mistake names its cure."""

import os
from pathlib import Path

import pytest

from server.compose import profile, store
from server.serving import check_names
from server.settings import (
    Flags,
    Settings,
    SettingsError,
    check_listening,
    config_folder,
    is_loopback,
    read_env_file,
    read_settings,
)
from tests.requirements import requirement

TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test puts into the environment (the env file does) goes with it."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def user_file(text: str, mode: int = 0o600) -> Path:
    folder = config_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "env"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def refusal(flags: Flags | None = None) -> str:
    with pytest.raises(SettingsError) as refused:
        read_settings(flags)
    return str(refused.value)


@requirement("settings:files")
def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user_file("LOOPWRIGHT_MODEL=of-the-file\nLOOPWRIGHT_PORT=1111\nLOOPWRIGHT_HOST=127.0.0.9\n")
    monkeypatch.setenv("LOOPWRIGHT_MODEL", "of-the-environment")
    monkeypatch.setenv("LOOPWRIGHT_PORT", "2222")

    settings = read_settings(Flags(port=3333))

    assert (settings.model, settings.port, settings.host) == ("of-the-environment", 3333, "127.0.0.9")


@requirement("settings:files")
def test_provider_keys_of_the_file_reach_the_providers_and_never_replace_what_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user_file("# keys\n\nOPENAI_API_KEY = \"sk-file\"\nexport ANTHROPIC_API_KEY='a b#c'\n")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-set")

    read_settings()

    assert (os.environ["OPENAI_API_KEY"], os.environ["ANTHROPIC_API_KEY"]) == ("sk-set", "a b#c")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes: the profile's ACL keeps others out")
def test_an_env_file_that_others_can_read_is_refused_with_the_command_that_mends_it() -> None:
    path = user_file("OPENAI_API_KEY=sk-secret", mode=0o644)

    assert refusal() == f"{path} may hold keys and others can read it: run `chmod 600 '{path}'`."


def test_a_line_that_is_no_assignment_is_named_without_what_it_says() -> None:
    path = user_file("A=1\nsk-secret-on-its-own\n")

    assert refusal() == f"{path}, line 2: write it as KEY=value, or begin it with #."


def test_without_an_env_file_there_is_nothing_to_read() -> None:
    assert read_env_file(config_folder() / "env") == {}


@requirement("cli:errors")
def test_every_mistake_is_named_with_its_setting_and_the_cure_and_no_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOOPWRIGHT_PORT", "70000")
    monkeypatch.setenv("LOOPWRIGHT_TOKENS", f"me:{TOKEN},short:secret")
    monkeypatch.setenv("LOOPWRIGHT_MCP_ON_DISCONNECT", "explode")

    assert refusal().splitlines() == [
        "LOOPWRIGHT_PORT cannot be used (Input should be less than or equal to 65535): "
        "set it to a port, 0 to 65535 (0: any free one).",
        "LOOPWRIGHT_TOKENS cannot be used (the token of entry 2 has less than 16 characters): set it to name:token[,name:token…], each "
        "name an owner, each token at least 16 characters.",
        "LOOPWRIGHT_MCP_ON_DISCONNECT cannot be used (Input should be 'cancel' or 'continue'): "
        "set it to cancel or continue.",
    ]


@requirement("cli:errors")
@pytest.mark.parametrize(
    ("tokens", "why"),
    [
        (TOKEN, "entry 1 is no name:token"),
        (f":{TOKEN}", "entry 1 is no name:token"),
        ("me:", "the token of entry 1 has less than 16 characters"),
        (f"me:{TOKEN}ü", "the token of entry 1 has a space or a letter beyond ASCII"),
        (f"me:{TOKEN} x", "the token of entry 1 has a space or a letter beyond ASCII"),
        (f"me:{TOKEN},me:{TOKEN}x", "entry 2 repeats a name or a token"),
        (f"me:{TOKEN},you:{TOKEN}", "entry 2 repeats a name or a token"),
        (",", "there is nothing in it"),
    ],
)
def test_what_is_wrong_with_tokens_is_said_without_showing_them(
    monkeypatch: pytest.MonkeyPatch, tokens: str, why: str
) -> None:
    monkeypatch.setenv("LOOPWRIGHT_TOKENS", tokens)
    message = refusal()
    assert message.startswith(f"LOOPWRIGHT_TOKENS cannot be used ({why}): set it to name:token")
    assert TOKEN not in message


@requirement("cli:errors")
def test_a_misspelt_setting_is_refused_and_the_right_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPWRIGHT_TOKNES", f"me:{TOKEN}")

    assert refusal() == "LOOPWRIGHT_TOKNES is no setting of Loopwright: did you mean LOOPWRIGHT_TOKENS?"


def test_how_long_questions_and_finished_runs_are_kept_is_set_and_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOOPWRIGHT_APPROVAL_TIMEOUT", "600")
    monkeypatch.setenv("LOOPWRIGHT_RETENTION_DAYS", "0")
    settings = read_settings()
    assert (settings.approval_timeout, settings.retention_days) == (600.0, 0.0)

    monkeypatch.setenv("LOOPWRIGHT_APPROVAL_TIMEOUT", "0")
    monkeypatch.setenv("LOOPWRIGHT_RETENTION_DAYS", "-1")
    assert [line.partition(" cannot be used ")[0] for line in refusal().splitlines()] == [
        "LOOPWRIGHT_APPROVAL_TIMEOUT",
        "LOOPWRIGHT_RETENTION_DAYS",
    ]


def test_an_empty_setting_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields.keys() - {"models"}:
        monkeypatch.setenv(f"LOOPWRIGHT_{name.upper()}", "")

    assert read_settings() == Settings()


@requirement("cli:errors")
@pytest.mark.parametrize(
    ("setting", "value", "complaint"),
    [
        (
            "MODELS",
            "",
            "LOOPWRIGHT_MODELS is empty: remove it or set it to * to allow every model, or name those",
        ),
        (
            "MODELS",
            " , ",
            "LOOPWRIGHT_MODELS cannot be used (there is nothing in it): set it to globs of the models",
        ),
        ("TOKENS", ",", "LOOPWRIGHT_TOKENS cannot be used (there is nothing in it): set it to name:token"),
        (
            "ALLOWED_HOSTS",
            ",",
            "LOOPWRIGHT_ALLOWED_HOSTS cannot be used (there is nothing in it): set it to host",
        ),
    ],
)
def test_a_setting_that_restricts_is_not_read_as_nothing(
    setting: str, value: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"LOOPWRIGHT_{setting}", value)

    assert refusal().startswith(complaint)


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPWRIGHT_MODELS", "gpt-4o, anthropic/*,")
    monkeypatch.setenv("LOOPWRIGHT_TOKENS", f" ann:{TOKEN}a , bob:{TOKEN}b")
    monkeypatch.setenv("LOOPWRIGHT_LOG_LEVEL", "debug")

    settings = read_settings()

    assert settings.models == ("gpt-4o", "anthropic/*")
    assert settings.secrets == {f"{TOKEN}a": "ann", f"{TOKEN}b": "bob"}
    assert settings.log_level == "DEBUG"
    assert TOKEN not in repr(settings)


@requirement("guard:token")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "my-laptop", "", "127.0.0.1.evil.example"])
def test_nothing_listens_beyond_loopback_without_a_token(host: str) -> None:
    with pytest.raises(SettingsError, match=r"LOOPWRIGHT_HOST.*set LOOPWRIGHT_TOKENS=me:"):
        check_listening(Settings(host=host))

    check_listening(Settings.model_validate({"host": host, "tokens": f"me:{TOKEN}"}))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_this_machine_alone_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check_listening(Settings(host=host))


def test_the_database_is_the_users_own_unless_another_is_named(clean_environment: Path) -> None:
    assert read_settings().database.endswith("/loopwright/loopwright.db")
    assert str(clean_environment) in read_settings().database
    assert read_settings(Flags(database_url="memory:")).database == "memory:"

    with pytest.raises(SettingsError, match="LOOPWRIGHT_DATABASE_URL: 'postgres://x' names no database"):
        store(Settings(database_url="postgres://x"))


def test_the_profile_is_the_mcp_json_in_force_unless_it_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert profile(Settings()) == "default"

    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}', encoding="utf-8")
    assert profile(Settings()) == str(tmp_path / "mcp.json")
    assert profile(Settings(profile="mine")) == "mine"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://u:PASSWORD@h/x", "postgres://…"),
        ("postgres://u:PASS@WORD@h/x", "postgres://…"),
        ("postgres://h/x?password=PASSWORD", "postgres://…"),
        ("u:PASSWORD@h/x", "…"),
        ("postgres://h/x", "postgres://h/x"),
        ("runs.db", "runs.db"),
    ],
)
def test_a_refused_database_is_named_without_its_password(
    url: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPWRIGHT_DATABASE_URL", url)
    with pytest.raises(SettingsError) as refused:
        store(read_settings())
    assert str(refused.value).startswith(
        f"LOOPWRIGHT_DATABASE_URL: '{shown}' names no database: use sqlite:////"
    )
    assert "PASS" not in str(refused.value) and "WORD" not in str(refused.value)


def test_a_refused_origin_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPWRIGHT_ALLOWED_ORIGINS", "https://u:PASSWORD@h")
    with pytest.raises(SettingsError, match="'https://…' is no origin"):
        check_names(read_settings())
