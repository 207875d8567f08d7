"""The OpenAPI document: valid, made from the models, and true of the routes."""

import asyncio
import json
from pathlib import Path
from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from executor import TaskRequest
from executor.memory_log import InMemoryLog
from server.openapi import describe
from server.routes import Methods, routes
from tests.http_client import door
from tests.requirements import requirement


@requirement("http:openapi")
async def test_the_document_is_valid_openapi_and_served(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, [{"text": "Done."}]) as d:
        served = await d.json("/openapi.json")
    assert served == json.loads(json.dumps(describe()))
    assert served["openapi"].startswith("3.1.")
    validate(served, cls=OpenAPIV31SpecValidator)


async def test_every_route_and_method_is_described_and_no_other(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, [{"text": "Done."}], log=InMemoryLog()) as d:
        table = routes(d.executor.executions)
    there = {
        (route.path.replace(":path", ""), method.lower())
        for route in table
        if isinstance(route.app, Methods)
        for method in route.app.methods
        if method != "HEAD"
    }
    described = {
        (path, method)
        for path, item in describe()["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert described == there


def test_the_request_is_described_as_the_model_has_it() -> None:
    described: dict[str, Any] = describe()["components"]["schemas"]["TaskRequest"]
    assert list(described["properties"]) == list(TaskRequest.model_fields)
    assert described["additionalProperties"] is False
    assert described["required"] == ["prompt"]
    iterations = described["properties"]["max_iterations"]
    assert {key: iterations[key] for key in ("type", "minimum", "maximum", "default")} == {
        "type": "integer",
        "minimum": 1,
        "maximum": 50,
        "default": 10,
    }
