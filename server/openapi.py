"""The OpenAPI 3.1 description of the HTTP door, made from the models (https://spec.openapis.org/oas/v3.1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final, Literal, get_args

from pydantic.json_schema import models_json_schema
from pydantic_core import from_json, to_json

from executor.schema import AgenticStepEvent, Execution, ExecutionHistory, Model, Status, TaskRequest

from .messages import MAX_LISTED, CancelRequest, DecisionRequest, EventPage, ExecutionPage, Problem

VERSION: Final = version("loopwright")
"""Read once, here: it looks into files."""

_REQUESTS: Final = (TaskRequest, DecisionRequest, CancelRequest)
_ANSWERS: Final = (Execution, ExecutionHistory, ExecutionPage, EventPage, AgenticStepEvent, Problem)

_ONE: Final = "/api/v1/agent/executions/{execution_id}"
_STREAM: Final = (
    "Server-Sent Events, one per event of the log: `id` is its seq, `event` its step_type, `data` the "
    "AgenticStepEvent as one line of JSON. Frames without `id` are transient: pass over names you do not know. "
    "The stream closes after the event with `is_final`; when it breaks before, go on with Last-Event-ID."
)

Schemas = dict[tuple[type[Model], Literal["validation", "serialization"]], dict[str, Any]]


@lru_cache(maxsize=16)
def document(prefix: str = "") -> bytes:
    """The whole document as JSON; `prefix`: where a host has put the routes."""
    servers = {"servers": [{"url": prefix}]} if prefix else {}
    return to_json({**describe(), **servers})


def merged(host: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """A host's own OpenAPI document and our operations in it, under `prefix`; `host` itself stays as it is.

    Our schemas are called `Loopwright…` there and our operations `loopwright_…`, so that they meet nothing of the
    host's; where both have a path, the host's stands. Whom a host lets in is its own: no security is described.
    """
    ours = _named_for_hosts()
    paths = {prefix + path: item for path, item in ours["paths"].items()}
    components = host.get("components", {})
    schemas = {**components.get("schemas", {}), **ours["schemas"]}
    return {
        **host,
        "paths": {**paths, **host.get("paths", {})},
        "components": {**components, "schemas": schemas},
    }


def _named_for_hosts() -> dict[str, Any]:
    """Our paths, but for the document's own, and our schemas, under names that are ours alone."""
    reference = b'"#/components/schemas/'
    described = from_json(to_json(describe()).replace(reference, reference + b"Loopwright"))
    del described["paths"]["/openapi.json"]
    for item in described["paths"].values():
        for method, operation in item.items():
            if method != "parameters":
                operation.pop("security", None)
                operation |= {"operationId": f"loopwright_{operation['operationId']}", "tags": ["loopwright"]}
    schemas = described["components"]["schemas"]
    return {
        "paths": described["paths"],
        "schemas": {f"Loopwright{name}": schema for name, schema in schemas.items()},
    }


def describe() -> dict[str, Any]:
    """The whole document."""
    inputs: list[tuple[type[Model], Literal["validation"]]] = [(model, "validation") for model in _REQUESTS]
    outputs: list[tuple[type[Model], Literal["serialization"]]] = [
        (model, "serialization") for model in _ANSWERS
    ]
    refs, definitions = models_json_schema([*inputs, *outputs], ref_template="#/components/schemas/{model}")
    schemas: dict[str, dict[str, Any]] = {model.__name__: ref for (model, _), ref in refs.items()}
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Loopwright",
            "version": VERSION,
            "description": "Runs of an agent: start one, follow its events, read what it did, stop it.",
        },
        "paths": _paths(schemas),
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _paths(schemas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    execute = _execute(schemas)
    execution = _json("The execution.", schemas["Execution"])
    return {
        "/api/v1/agent/execute": {"post": {**execute, "operationId": "execute"}},
        "/agent/run": {"post": {**execute, "operationId": "run", "summary": "The same as execute"}},
        "/api/v1/agent/executions": {
            "get": {
                "operationId": "listExecutions",
                "summary": "The caller's executions, newest first",
                "parameters": [
                    _query("status", {"enum": list(get_args(Status))}),
                    _query("session_id", {"type": "string"}),
                    _query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": 50}),
                    _query("cursor", {"type": "string"}),
                ],
                "responses": {
                    "200": _json("One page.", schemas["ExecutionPage"]),
                    **_problems(schemas, 401, 422),
                },
            }
        },
        _ONE: {
            "parameters": [_path("execution_id")],
            "get": {
                "operationId": "getExecution",
                "summary": "The execution with its steps and tool calls",
                "responses": {
                    "200": _json("Everything it did so far.", schemas["ExecutionHistory"]),
                    **_problems(schemas, 401, 404),
                },
            },
            "delete": {
                "operationId": "deleteExecution",
                "summary": "Remove a finished execution and leave nothing",
                "responses": {"204": {"description": "It is gone."}, **_problems(schemas, 401, 404, 409)},
            },
        },
        f"{_ONE}/events": {
            "parameters": [_path("execution_id")],
            "get": {
                "operationId": "streamEvents",
                "summary": "The events after a place, then live",
                "parameters": [
                    _header("Last-Event-ID", "The seq of the last event read; wins over `after`.", _SEQ),
                    _query("after", _SEQ),
                ],
                "responses": {
                    "200": _stream_or("A page of what is there now.", schemas["EventPage"]),
                    "204": {"description": "It has ended and there is nothing new."},
                    **_problems(schemas, 400, 401, 404, 409),
                },
            },
        },
        f"{_ONE}/cancel": {
            "parameters": [_path("execution_id")],
            "post": {
                "operationId": "cancelExecution",
                "summary": "End the run as soon as it can",
                "requestBody": _body(schemas["CancelRequest"], required=False),
                "responses": {
                    "200": _json("It had ended before; nothing changes.", schemas["Execution"]),
                    "202": execution,
                    **_problems(schemas, 400, 401, 404, 413, 415, 422),
                },
            },
        },
        f"{_ONE}/approvals/{{call_id}}": {
            "parameters": [_path("execution_id"), _path("call_id")],
            "post": {
                "operationId": "answerApproval",
                "summary": "Answer the question about one call, once",
                "requestBody": _body(schemas["DecisionRequest"]),
                "responses": {"200": execution, **_problems(schemas, 400, 401, 404, 409, 413, 415, 422)},
            },
        },
        "/healthz": {"get": _probe("healthz", "The process lives.", {})},
        "/readyz": {"get": _probe("readyz", "It takes requests.", _problems(schemas, 503))},
        "/openapi.json": {"get": _probe("openapi", "This document.", {})},
    }


_SEQ: Final = {"type": "integer", "minimum": 0}


def _execute(schemas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
    location = {"Location": {"description": "The execution.", "schema": {"type": "string"}}}
    return {
        "summary": "Run a task",
        "parameters": [
            _header("Idempotency-Key", "The same key is the same execution, never a second one.", key),
            _header("Last-Event-ID", "With an Idempotency-Key: go on after this event.", _SEQ),
            _header(
                "Prefer",
                "`respond-async`: do not wait. `wait=N`: wait at most N seconds for the end.",
                {"type": "string"},
            ),
        ],
        "requestBody": _body(schemas["TaskRequest"]),
        "responses": {
            "200": {**_stream_or("The finished execution.", schemas["Execution"]), "headers": location},
            "202": {**_json("It is on record and goes on.", schemas["Execution"]), "headers": location},
            "204": {"description": "Joined by its key: it has ended and there is nothing new."},
            **_problems(schemas, 400, 401, 403, 408, 409, 413, 415, 421, 422, 429, 503),
        },
    }


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _stream_or(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    stream = {"text/event-stream": {"schema": {"type": "string", "description": _STREAM}}}
    as_json = _json(f"The events. With `Accept: application/json`: {description}", schema)
    return {**as_json, "content": {**stream, **as_json["content"]}}


def _problems(schemas: dict[str, dict[str, Any]], *statuses: int) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": schemas["Problem"]}}
    return {str(status): {"description": _REASONS[status], "content": content} for status in statuses}


_REASONS: Final = {
    400: "invalid_json, invalid_header or invalid_host.",
    401: "unauthorized: a token is needed.",
    403: "forbidden_origin: a page of that origin may not call.",
    404: "not_found: no such execution, or somebody else's.",
    408: "request_timeout: the body did not come.",
    409: "In the way of what there is: session_busy, idempotency_mismatch, still_running, already_decided, "
    "beyond_the_log.",
    413: "too_large: the body may have 1 MiB.",
    415: "unsupported_media_type: send application/json.",
    421: "misdirected_host: this server is not known by that name.",
    422: "invalid_request or model_not_allowed: `errors` names each field.",
    429: "overloaded: try again after Retry-After.",
    503: "stopping or storage_unavailable: try again after Retry-After.",
}


def _body(schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _probe(name: str, description: str, problems: dict[str, Any]) -> dict[str, Any]:
    answer = _json(description, {"type": "object"})
    return {
        "operationId": name,
        "summary": description,
        "security": [{}],
        "responses": {"200": answer, **problems},
    }
