"""Whose API key a model wants, known from its name alone: nothing is imported, and nobody is asked.

Only the common providers are known here, and only what is certainly wanting is called missing; of any other the
provider's own client tells.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from executor.redaction import safe_line
from executor.think import ModelFailure

KeyCure = Callable[[str, Sequence[str]], str]
"""What to do when a model (by name) finds none of these variables: the end of a sentence."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The variables that a provider's key stands in, the first one as it is documented, and those that make it
    unnecessary: a server of one's own, another way to prove who asks."""

    keys: tuple[str, ...]
    instead: tuple[str, ...] = ()


_OPENAI = _Wanted(("OPENAI_API_KEY",), ("OPENAI_BASE_URL", "OPENAI_API_BASE"))
_ANTHROPIC = _Wanted(
    ("ANTHROPIC_API_KEY",),
    (
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_API_BASE",
        "ANTHROPIC_IDENTITY_TOKEN",
        "ANTHROPIC_IDENTITY_TOKEN_FILE",
        "ANTHROPIC_IDENTITY_SOURCE",
    ),
)
_GEMINI = _Wanted(("GEMINI_API_KEY", "GOOGLE_API_KEY"), ("GEMINI_API_BASE",))
_LITELLM = {"openai": _OPENAI, "anthropic": _ANTHROPIC, "gemini": _GEMINI}
_NATIVE = {
    "openai": _OPENAI,
    "openai-chat": _OPENAI,
    "openai-responses": _OPENAI,
    "anthropic": _ANTHROPIC,
    "google": _GEMINI,
}
_OPENAI_NAME = re.compile(r"(ft:)?(gpt-(?!oss)|chatgpt-|o[1-9](-|$))")
"""Names of OpenAI's models, written without the provider."""


def missing_keys(model: str, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The variables one of which the model's key must stand in, when all are empty; nothing: all may be well."""
    wanted = _wanted(model)
    there = os.environ if environment is None else environment
    if wanted is None or any(there.get(name) for name in (*wanted.keys, *wanted.instead)):
        return ()
    return wanted.keys


def no_key(model: str, variables: Sequence[str], cure: KeyCure | None = None) -> ModelFailure:
    """The failure of a model whose key is in none of these variables."""
    return ModelFailure(safe_line(f"{model}: no API key: {(cure or plain_cure)(model, variables)}."))


def plain_cure(model: str, variables: Sequence[str]) -> str:
    """Where a key is looked for when nothing more is known of the surroundings."""
    return f"set {' or '.join(variables) or 'the key variable of its provider'} in the environment"


def _wanted(model: str) -> _Wanted | None:
    head, slash, _ = model.partition("/")
    if ":" in head and not head.startswith("ft:"):
        return _NATIVE.get(head.partition(":")[0])
    if slash:
        return _LITELLM.get(head)
    return _OPENAI if _OPENAI_NAME.match(model) else None
