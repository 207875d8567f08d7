"""What a request may not name as its model: a name that carries an address.

Providers' clients take more from a name than a name. LiteLLM's `oobabooga/` and `huggingface/`, and Hugging Face's
own client, send the whole conversation to a URL that stands where the model should; others write the name into the
path of theirs. So whoever may send a request could have this process talk to any address that it can reach.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

SCRIPTED: Final = "scripted:"
_ADDRESS: Final = re.compile(
    r"""
    //                                                          # a URL, with its scheme or without
    | [?\#\\]                                                   # the rest of one; another way to write a slash
    | %(?!3a|2f)                                                # escapes: ARNs are sent with : and / escaped
    | \.\.                                                      # up, out of the provider's path
    | \[                                                        # an IPv6 address
    | (?:^|[/:@])(?:localhost|\d{1,3}(?:\.\d{1,3}){3})(?=[:/]|$)    # this machine, an IPv4 address
    | (?:^|[/:@])[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}:\d{2,5}(?=/|$)    # host.name:8080
    """,
    re.VERBOSE | re.IGNORECASE,
)


def carries_address(model: str) -> bool:
    """Whether this name is, or holds, anything that a client could take for an address, or for a way to one.

    No name of a model does: `vertex_ai/claude-x@20240620`, `ollama/llama3:8b`, `bedrock/arn:aws:bedrock:…`,
    `ft:gpt-4o:acme::1` and `huggingface/org/model` are well.
    """
    return any(_unwritten(letter) for letter in model) or _ADDRESS.search(model) is not None


def leads_upwards(script: str) -> bool:
    """Whether the path in `scripted:PATH` leaves the folder that a glob seems to hold it in."""
    return ".." in re.split(r"[/\\]", script.removeprefix(SCRIPTED))


def _unwritten(letter: str) -> bool:
    return letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf", "Cs")
