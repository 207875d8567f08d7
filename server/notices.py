"""What whoever starts us should know at once, one line each: what the agent lacks to do anything useful."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from executor.keys import missing_keys
from executor.schema import TaskRequest
from tool_clients.config import CONFIG_VARIABLE, Config, usual_places

from .settings import PREFIX, Settings, config_folder

DEFAULT_MODEL: str = TaskRequest.model_fields["model"].default
_OTHERS = (("ANTHROPIC_API_KEY", "anthropic/<model>"), ("OPENAI_API_KEY", "gpt-4o"))
_ALSO = (*_OTHERS, ("GEMINI_API_KEY", "gemini/<model>"))


def notices(settings: Settings, config: Config, *, own_model: bool = False) -> Iterator[str]:
    """What to say at the start. `own_model`: the user's own agent brings its model along, and its key."""
    if settings.database_url == "memory:" and os.environ.get(f"{PREFIX}DATABASE_URL", "memory:") != "memory:":
        yield f"Everything is kept in memory: {PREFIX}DATABASE_URL is not used."
    if not settings.toolsets and (line := no_tools(config)) is not None:
        yield line
    if not own_model and (line := no_key(settings)) is not None:
        yield line


def no_tools(config: Config) -> str | None:
    """That the agent has no tools, and where they were looked for."""
    if config.path is None:
        places = ", ".join(map(shown, usual_places()))
        return f"No mcp.json ({places}), and none named by --config or {CONFIG_VARIABLE}: the agent has no tools."
    if not config.servers and not config.refused:
        return f"{shown(config.path)} names no server to use: the agent has no tools."
    return None


def no_key(settings: Settings) -> str | None:
    """That the default model's key is missing, by its name alone; and what to do."""
    model = settings.model or DEFAULT_MODEL
    variables = missing_keys(model)
    return f"{model} has no API key: {key_cure(model, variables)}." if variables else None


def key_cure(model: str, variables: Sequence[str]) -> str:
    """Where its key can be put, and which other model may be asked: for the end of a sentence."""
    named = " or ".join(variables) or "its provider's key variable"
    place = shown(config_folder() / "env")
    return f"set {named} in the environment or in {place}, or {_other_model(variables)}"


def _other_model(variables: Sequence[str]) -> str:
    setting = f"{PREFIX}MODEL"
    for key, model in _ALSO:
        if key not in variables and os.environ.get(key):
            return f"use the {key} that is set, with {setting}={model}"
    key, model = next(other for other in _OTHERS if other[0] not in variables)
    return f"use another provider, e.g. {setting}={model} with {key}"


def shown(path: Path) -> str:
    """The path, the user's own folder as `~`: it may be read by somebody else."""
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # elsewhere, or there is no home
        return str(path)
