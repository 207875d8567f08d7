"""What Loopwright promises: id → (sentence, source), and the mark with which a test says which one it proves.

    @requirement("execute:budget:iterations")
    async def test_ten_turns_are_allowed_and_the_eleventh_is_the_closing_one() -> None: ...

`tests/test_requirements.py` checks both directions: a test names only promises that are listed here, and a
promise that no test names is reported. Sources: `DESIGN §n` is a section of the design that the project began
with (docs/design.md is its page for the next engineer), `2 §n.m` a demand of issue 2.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

REQUIREMENTS: Final[dict[str, tuple[str, str]]] = {
    # The data
    "schema:strict": ("No field is coerced, no unknown field accepted, NaN is no number", "DESIGN §3"),
    "schema:limits": ("Values outside the limits never reach a model, at any door", "2 §1.1"),
    # The fold
    "state:replay": ("Replaying a log gives an equal state", "2 §1.2"),
    "state:gapless": ("`seq` runs from 1 without a gap", "2 §1.2"),
    "state:final": ("There is exactly one final event and it is the last", "2 §1.2"),
    "state:order": ("Every model answer is one event; calls and results follow in the fixed order", "DESIGN §3"),
    "state:golden": ("Logs of earlier versions fold to the same history", "DESIGN §1.2"),
    "state:in-doubt": ("An open call that may not be repeated reads 'outcome unknown'", "DESIGN §1.4"),
    "state:approval": ("A call that needs approval starts only after a yes", "DESIGN §3"),
    # The loop
    "execute:lesson": ("TOOL_CALL, TOOL_RESULT, FINAL_ANSWER, in this order, with filled records", "2 §4.2"),
    "execute:history": ("The history holds the same calls, with durations above 0", "2 §4.2"),
    "execute:budget:iterations": ("`max_iterations` turns may call tools, then one closing request", "DESIGN §3"),
    "execute:budget:tool-errors": ("`max_tool_errors` failed calls are tolerated, the next ends the run", "DESIGN §3"),
    "execute:budget:tool-calls": ("`max_tool_calls` calls are made, no more", "DESIGN §3"),
    "execute:budget:tokens": ("`max_tokens` counts input and output over all requests", "DESIGN §3"),
    "execute:budget:cost": ("`max_cost_usd` ends the run when it is used up", "DESIGN §3"),
    "execute:budget:timeout": ("`timeout_seconds` counts from creation, minus the time of open questions", "DESIGN §3"),
    "execute:output-schema": ("The answer meets `output_schema`, after at most two repairs", "DESIGN §3"),
    "execute:session": ("A session's runs share one conversation, one run at a time", "DESIGN §3"),
    "execute:idempotency": ("One idempotency key of one owner is one execution", "3 §3"),
    "execute:approval": ("A question costs nothing, survives restarts and is answered once", "3 §6"),
    "execute:approval:expiry": ("A question that nobody answers in time has expired", "3 §6"),
    "execute:context-overflow": ("A run that outgrew the model's context ends with the work so far", "DESIGN §2"),
    "execute:concurrent": ("Tools of one turn run together; a failing one leaves its siblings alone", "2 §1.7"),
    "execute:nothing-after-final": ("Nothing runs on after the final event", "2 §1.7"),
    "execute:own-task": ("The run lives in its own task; closing the generator cancels it, unless detached", "2 §1.5"),
    "execute:stream": ("`stream_execution` yields bytes, each one whole SSE frame", "2 §1.5"),
    "execute:registry-swap": ("Registry, schemas and prompt are read at each dispatch", "2 §1.5"),
    "execute:messages": ("The model reads system, user, assistant with its calls, one result per call", "2 §4.2"),
    # What fails
    "fail:malformed-arguments": ("Malformed argument JSON comes back as an observation", "2 §1.6"),
    "fail:non-object-arguments": ("Arguments that are no object come back as an observation", "2 §1.6"),
    "fail:unknown-tool": ("An unknown tool is an observation, also beside known ones", "2 §1.6"),
    "fail:raising-tool": ("No tool exception leaves the generator", "2 §1.6"),
    "fail:tool-timeout": ("A tool that takes too long is stopped and reported", "2 §1.6"),
    "fail:tool-silence": ("Progress keeps a call alive, up to its limit in all; readers hear of it", "5 §1"),
    "fail:empty-answer": ("An empty answer is fed back, not taken for an answer", "2 §1.6"),
    "fail:text-with-calls": ("Text together with tool calls is reasoning, not the end", "2 §1.6"),
    "fail:call-ids": ("Duplicate and missing call ids are replaced before anything is stored", "2 §1.6"),
    "fail:many-calls": ("Five hundred calls in one turn are carried out", "2 §1.6"),
    "fail:cut-answer": ("An answer cut by the token limit is fed back", "2 §1.6"),
    "fail:model-retry": ("429 and 5xx are retried with visible waits within the run's limits", "2 §1.6"),
    "fail:model-refusal": ("401 and 404 end the run at once with a typed reason", "2 §1.6"),
    "fail:silent-model": ("A model that goes silent at any stage does not hang the run", "2 §1.6"),
    "fail:cancel": ("A cancel at any moment ends the run with one final event", "2 §1.6"),
    # Tools and models
    "tool:oversized": ("The model reads at most 64 KiB of a result, the log keeps at most 1 MiB", "2 §1.4"),
    "tool:unserialisable": ("A result that is not JSON-able becomes one that is", "2 §1.4"),
    "tool:surrogates": ("Lone surrogates are cleaned once, at the rim", "2 §1.4"),
    "tool:sync": ("A plain function runs in a thread", "2 §1.4"),
    "model:litellm": ("LiteLLM reaches OpenAI, Anthropic and Gemini, with no retries of its own", "2 §1.3"),
    "model:scripted": ("`scripted:PATH` plays a YAML script, only where the operator allows it", "2 §1.3"),
    "model:json": ("A model that cannot call tools runs the same loop: told in the prompt, answering in JSON", "5 §11"),
    "model:json:grammar": ("What an answer is held to keeps to what every local server takes", "5 §11"),
    "model:json:unreadable": ("What can mean one thing is taken, any other answer is fed back with the reason", "5 §11"),
    "model:json:formats": ("A server that refuses a response_format is asked for less, and not again", "5 §11"),
    "model:json:sessions": ("A session goes on in the other mode, a run after a restart", "5 §11"),
    "model:same-request": ("The plain agent and the direct way send the same request", "DESIGN §1"),
    # The log and the engine
    "log:append": ("An append is whole or refused, by seq and by epoch", "2 §2.1"),
    "log:follow": ("A follower sees every event once, also those of other processes", "2 §2.1"),
    "log:owner": ("A foreign execution is an unknown one", "2 §2.1"),
    "log:bytes": ("An event is serialised once; those bytes are stored, streamed, replayed", "2 §2.1"),
    "log:private-files": ("Files are 0600 in a 0700 directory", "2 §2.1"),
    "log:retention": ("Finished executions are removed after RETENTION_DAYS and leave nothing", "3 §4"),
    "log:indexes": ("A listing of 100 among 100,000 reads its own rows alone", "3 §4"),
    "log:newer-format": ("Executions of newer formats are named and left alone", "3 §1"),
    "log:schema-version": ("An older file is migrated, a newer one refused", "2 §2.1"),
    "engine:admission": ("`MAX_RUNNING` run, `MAX_QUEUED` wait, the next is refused", "2 §2.2"),
    "engine:recovery": ("Unfinished executions whose driver is gone go on after a start", "2 §2.2"),
    "engine:doors": ("A cancel or a decision given to one process reaches the driver in another within 2 s", "3 §1"),
    "engine:fence": ("A driver that lost its execution writes nothing more", "3 §1"),
    "engine:profile": ("A driver claims only executions of its own profile", "DESIGN §1.7"),
    "crash:at-most-once": ("Effects of unmarked tools happen at most once", "2 §2.4"),
    "crash:byte-for-byte": ("Events on record stay, byte for byte, through SIGKILL after any append", "2 §2.4"),
    "crash:no-repeat": ("No recorded model answer or tool result is asked for again", "2 §2.4"),
    # The doors
    "http:execute": ("POST execute streams the run; its Location answers as soon as it is durable", "DESIGN §4"),
    "http:resume": ("A stream goes on after `Last-Event-ID` without gap or double", "DESIGN §4"),
    "http:bad-input": ("Every bad input is a problem+json with a stable code, never a 500", "2 §3.1"),
    "http:idempotency": ("The same `Idempotency-Key` is the same execution", "DESIGN §4"),
    "http:openapi": ("The OpenAPI document comes from the models", "2 §3.1"),
    "guard:host": ("Only this host's names are answered, only its origins accepted", "2 §3.3"),
    "guard:token": ("No listening beyond loopback without a token; with tokens, 401 everywhere", "2 §3.3"),
    "mcp:execute": ("`execute_task` reports progress and answers within `wait_seconds`", "2 §3.2"),
    "mcp:hand-over": ("A client's time-out does not kill the work", "DESIGN §5"),
    "mcp:stop": ("An explicit stop cancels the run", "2 §3.2"),
    "mcp:pure-stdout": ("In stdio mode stdout is pure JSON-RPC", "2 §3.2"),
    "mcp:exit": ("EOF, SIGINT and SIGTERM end the process within 3 s", "2 §3.2"),
    "mcp:lean": ("`tools/list` is at most 6 kB", "2 §3.2"),
    "mcp:typescript": ("The TypeScript SDK's client gives up waiting and still fetches the result", "2 §3.2"),
    "cli:exit-codes": ("`run` exits 0, 1, 2, 3 or 130 as documented", "DESIGN §9"),
    "cli:executions": ("`executions list|show|cancel|prune` act on what is on record, live too", "3 §4"),
    "cli:approval": ("`run` asks at a terminal before a call that needs approval, else declines it", "2 §1"),
    "cli:errors": ("An error names the setting to change", "2 §3.4"),
    "serve:drain": ("A stop takes nothing new, lets runs end before their readers, and loses none", "2 §3.4"),
    "settings:files": ("Settings come from LOOPWRIGHT_* and the user's env file", "DESIGN §9"),
    "downstream:config": ("`mcp.json` as assistants have it is read, our own entry skipped", "2 §3.5"),
    "downstream:patterns": ("allow, deny, read_only and idempotent act on a server's own names", "2 §3.5"),
    "downstream:failure": ("A server that is down costs its own tools only", "DESIGN §6"),
    "downstream:ready": ("Twelve servers, three of them bad, and it is ready in less than 3 s", "5 §1"),
    "downstream:waiting": ("A run waits once for servers on their way, a call for its own only", "DESIGN §6"),
    "downstream:lost-call": ("A call in flight ends with its connection, and is never sent again", "5 §1"),
    "downstream:cancel": ("A call given up is cancelled at its server; its late answer is ignored", "5 §1"),
    "downstream:depth": ("Agents that call each other, or themselves, come to an end", "5 §4"),
    "downstream:hostile": ("Hostile servers do not hold up the event loop, nor other servers' calls", "5 §2"),
    "downstream:requests": ("Requests of a server are answered: a ping, and a right refusal of the rest", "5 §2"),
    "downstream:reload": ("A new `mcp.json` restarts only the servers it changed, and no run notices", "5 §4"),
    "downstream:shown": ("`tools`, `/readyz` and `loopwright://tools` say the same of each server", "5 §10"),
    "downstream:oauth": ("A server behind OAuth is used with the token of a person's login", "5 §9"),
    "downstream:oauth:joins": ("A server that needs a login says so, and joins once somebody has logged in", "5 §9"),
    "downstream:oauth:renewal": ("A token that ran out is renewed once; a refused renewal needs a login", "5 §9"),
    "downstream:oauth:bound": ("A token goes to the address that it was given for, and nowhere else", "5 §9"),
    "cli:login": ("`loopwright login` and `logout` are a person's way, each refusal names its cure", "5 §9"),
    "downstream:oauth:machine": ("Client credentials need no person", "5 §9"),
    "downstream:oauth:secret": ("No token is logged, told or stored but in its own file", "5 §9"),
    "downstream:names": ("Every tool is offered, under a name of its own that nothing but its server and itself decide", "5 §5"),
    "downstream:lists": ("A list of tools is read within limits, and what is beyond them is named", "5 §2"),
    "downstream:content": ("The model reads all of a result that it can use, within bounds; the record keeps every part", "5 §6"),
    "downstream:in-flight": ("A call under way ends once: at its limit, its server's end or a cancel, told to its server", "5 §1"),
    "downstream:refusals": ("A refused call is an observation at once; no redirect is followed with what is for the server alone", "5 §2"),
    "downstream:secrets": ("No key that we were given stands in a log, a file, an answer or a request to a model", "5 §3"),
    "downstream:sessions": ("A server that forgot its sessions gets one new handshake, no call is made twice", "5 §1"),
    "downstream:processes": ("No process of a tool server outlives us: 6 s after a stop, 10 s after a SIGKILL", "5 §3"),
    "downstream:peers": ("Runs with servers of other makers end well, killed in the middle or not", "5 §12"),
    "owner:foreign": ("Another owner's execution, session and key are unknown at every door", "3 §2"),
    "doors:decisions": ("Clients may approve and reject; only time makes a question expire", "3 §6"),
    "mcp:inspector": ("The MCP Inspector lists our tools strictly and runs a task, in both eras", "3 §10"),
    # Tools from Python
    "tools:kinds": ("The lesson's stories are the same with every kind of tool", "5 §7"),
    "tools:pydantic-ai": ("A toolset of Pydantic AI is listed, validated and called as its owner meant it", "5 §7"),
    "tools:adk": ("A tool or toolset of Google ADK works, and says what it misses without ADK around it", "5 §7"),
    "tools:marks": ("What a toolset asks for is in the marks; more are given to all tools or by name", "5 §7"),
    "tools:lifetime": ("A toolset is open as long as its executor, and takes nobody with it when it ends", "5 §7"),
    "tools:refused": ("What is no tool is refused with a stable code and its cure", "5 §7"),
    "tools:option": ("`--toolset module:attribute` brings tools to every command that needs them", "5 §7"),
    "tools:docs": ("Every code block of docs/tools.md runs", "5 §7"),
    # Embedded in somebody else's program
    "embed:uvicorn": ("`uvicorn --factory server.asgi:app` serves it all and stops without a loss", "3 §8"),
    "embed:hosts": ("Our app, a Starlette host and a FastAPI host answer alike, under a prefix too", "3 §8"),
    "embed:restart": ("One app may start, stop and start again, and two may live in one process", "3 §8"),
    "embed:openapi": ("A FastAPI host's OpenAPI document can show our operations", "3 §8"),
    "embed:responses": ("`stream_execution` works in `EventSourceResponse` and `StreamingResponse`", "2 §1.5"),
    "embed:agent": ("A user's own agent keeps its instructions, capabilities and settings", "3 §8"),
    "embed:imports": ("Imports run one way; a library user loads no web, MCP or model package", "DESIGN §8"),
    "embed:mistakes": ("A library user's mistake is named at construction, with its cure", "DESIGN §6"),
    "embed:events": ("`events` gives a run again as `execute` gave it, after a restart too", "2 §1.5"),
    "embed:logs": ("A log takes any path, and is found where the executor is", "DESIGN §7"),
    "embed:docs": ("Every code block of docs/embedding.md runs", "3 §8"),
    # What a newcomer meets
    "demo:end-to-end": ("The demo finishes a real job and exits 0", "2 §4.1"),
    "docs:blocks": ("Every code block of the README runs", "2 §4.3"),
}  # fmt: skip


def requirement(requirement_id: str) -> pytest.MarkDecorator:
    """The mark of a test that proves `requirement_id`; a KeyError for a promise that nobody made."""
    if requirement_id not in REQUIREMENTS:
        raise KeyError(f"{requirement_id!r} is not in tests/requirements.py: add it there, or fix the id")
    return pytest.mark.requirement(requirement_id)


def proven() -> dict[str, list[str]]:
    """Every id that a test names → the files that name it, read from the source and not from a collection:
    the answer is the same when one file runs alone.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        for used in _ids(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(used, []).append(path.name)
    return found


def unproven() -> list[str]:
    """The promises that no test names yet, in the order of the list."""
    seen = proven()
    return [listed for listed in REQUIREMENTS if listed not in seen]


def _ids(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id="requirement") | ast.Attribute(attr="requirement"),
                args=[ast.Constant(value=str(used))],
            ):
                yield used
            case _:
                pass
