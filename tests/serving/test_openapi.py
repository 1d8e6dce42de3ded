"""The document that describes the API: valid, whole, and served to anyone."""

from __future__ import annotations

from pathlib import Path

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from serving.keys import KeyRing
from serving.openapi import OPERATIONS, Operation, document
from tests.serving.fakes import Stage


def test_it_is_openapi_3_1() -> None:
    validate(document(), cls=OpenAPIV31SpecValidator)


def test_it_has_every_route_and_no_other() -> None:
    routes = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in Stage().app()._others.routes
        for method in route.methods - {"HEAD"}
    }
    described = {(path, method) for path, on in document()["paths"].items() for method in on}
    assert described == routes
    assert len(described) == len(OPERATIONS)


async def test_it_is_served_without_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: []")
    async with Stage(ring=KeyRing(keys)).client() as client:
        response = await client.get("/openapi.json")
    assert response.json() == document()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.path)
def test_examples_are_in_order(operation: Operation) -> None:
    if operation.body is not None:
        operation.body.model_validate(operation.example)
