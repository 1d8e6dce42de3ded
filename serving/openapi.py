"""What is this API, for machines? The OpenAPI 3.1 document served at /openapi.json.

Bodies are those the gateway validates by (`serving.requests`), so the document cannot promise what
the gateway refuses; that it names every route and no other is a test. FastAPI's own document would
know nothing of the generating routes, which are plain ASGI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cluster.priority import Priority
from serving.access import KEY_HEADER, PRIORITY_HEADER
from serving.completions_route import REQUEST_ID_HEADER
from serving.degrade import DEGRADED_HEADER, TIER_HEADER
from serving.requests import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    TokenizeBody,
)

API_VERSION = "1"
_SCHEMAS = "#/components/schemas/"
_MODEL = "smollm2-135m-instruct"
_HELLO = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path.

    `answer`: the schema of a 200. `others`: of a 200 that is no JSON, by media type. `refusals`:
    statuses with an error body. `open`: needs no key, and no model answers.
    """

    path: str
    method: Literal["get", "post"] = "get"
    summary: str
    body: type[BaseModel] | None = None
    example: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] | None = None
    others: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    refusals: tuple[int, ...] = ()
    open: bool = False


def _object(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _list_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


_TEXT, _COUNT, _ANY = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "object"}
_CARD = _object("id", "object", "max_model_len", id=_TEXT, object=_TEXT, max_model_len=_COUNT)
_USAGE = _object(
    "prompt_tokens",
    "total_tokens",
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    shardwise=_object("tier", "degraded", tier=_COUNT, degraded=_list_of(_TEXT)),
)
_GENERATED = _object(
    *("id", "object", "model", "choices"),
    id=_TEXT,
    object=_TEXT,
    created=_COUNT,
    model=_TEXT,
    choices=_list_of(_ANY),
    usage=_USAGE,
)
_EMBEDDED = _object(
    *("object", "model", "data", "usage"),
    object=_TEXT,
    model=_TEXT,
    data=_list_of(
        _object(
            *("index", "embedding"),
            index=_COUNT,
            embedding={"anyOf": [_list_of({"type": "number"}), {**_TEXT, "format": "byte"}]},
        )
    ),
    usage=_USAGE,
)
_ASKING = (400, 401, 403, 404, 408, 413)  # of whatever takes a body and a model
_ANSWERED = (*_ASKING, 429, 500, 503)  # of whatever a replica answers
_STREAM = {
    "text/event-stream": {
        "description": "The `data` of each event is a JSON object as OpenAI streams it, an object "
        "with `error` where the answer was cut short, or `[DONE]`, which is the last"
    }
}

OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        method="post",
        summary="Answer a conversation; with `stream` as server-sent events",
        body=ChatBody,
        example={"model": _MODEL, "messages": _HELLO, "max_tokens": 16},
        answer=_GENERATED,
        others=_STREAM,
        refusals=_ANSWERED,
    ),
    Operation(
        path="/v1/completions",
        method="post",
        summary="Continue a text; with `stream` as server-sent events",
        body=CompletionBody,
        example={"model": _MODEL, "prompt": "The capital of France is", "max_tokens": 4},
        answer=_GENERATED,
        others=_STREAM,
        refusals=_ANSWERED,
    ),
    Operation(
        path="/v1/embeddings",
        method="post",
        summary="Turn texts into vectors, where the model is an embedding model",
        body=EmbeddingBody,
        example={"model": _MODEL, "input": ["Paris", "France"]},
        answer=_EMBEDDED,
        refusals=_ANSWERED,
    ),
    Operation(
        path="/tokenize",
        method="post",
        summary="Tokens of a prompt or of messages, as the engine will see them",
        body=TokenizeBody,
        example={"model": _MODEL, "messages": _HELLO},
        answer=_object("count", "tokens", count=_COUNT, tokens=_list_of(_COUNT)),
        refusals=_ASKING,
    ),
    Operation(
        path="/detokenize",
        method="post",
        summary="Text of tokens",
        body=DetokenizeBody,
        example={"model": _MODEL, "tokens": [504, 3575]},
        answer=_object("prompt", prompt=_TEXT),
        refusals=_ASKING,
    ),
    Operation(
        path="/v1/models",
        summary="The models the caller may use",
        answer=_object("object", "data", object=_TEXT, data=_list_of(_CARD)),
        refusals=(400, 401, 403),
    ),
    Operation(
        path="/v1/models/{model}",
        summary="One of them; its name may contain slashes",
        answer=_CARD,
        refusals=(400, 401, 403, 404),
    ),
    Operation(
        path="/health", summary="Whether the gateway's process answers", answer=_ANY, open=True
    ),
    Operation(
        path="/ready",
        summary="Whether a replica of the planned model answers; 503 if none does",
        answer=_ANY,
        refusals=(503,),
        open=True,
    ),
    Operation(
        path="/status",
        summary="The controller's account: pools, replicas, tier, decisions",
        answer=_ANY,
        refusals=(503,),
        open=True,
    ),
    Operation(
        path="/metrics", summary="Prometheus metrics", others={"text/plain": _TEXT}, open=True
    ),
    Operation(
        path="/metrics/targets",
        summary="Where each gateway's own metrics are, for Prometheus's HTTP discovery",
        answer=_list_of(_object("targets", targets=_list_of(_TEXT))),
        refusals=(503,),
        open=True,
    ),
    Operation(path="/openapi.json", summary="This document", answer=_ANY, open=True),
)


@cache
def document() -> dict[str, Any]:
    """The document. Treat it as read-only."""
    bodies = [operation.body for operation in OPERATIONS if operation.body is not None]
    _, schemas = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_SCHEMAS + "{model}"
    )
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shardwise",
            "version": API_VERSION,
            "description": "OpenAI's API and vLLM's extensions, in front of planned pools.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"] | {"Error": _ERROR},
            "headers": _RESPONSE_HEADERS,
            "parameters": _REQUEST_HEADERS,
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"`{KEY_HEADER}: Bearer KEY`, where the service has a key file",
                }
            },
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {"summary": operation.summary, "responses": _responses(operation)}
    parameters: list[dict[str, Any]] = []
    if "{model}" in operation.path:
        parameters.append({"name": "model", "in": "path", "required": True, "schema": _TEXT})
    if not operation.open:
        # Either a key or, where the service has none, nothing.
        made["security"] = [{"key": []}, {}]
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _REQUEST_HEADERS]
    if parameters:
        made["parameters"] = parameters
    if operation.body is not None:
        content = {
            "schema": {"$ref": _SCHEMAS + operation.body.__name__},
            "example": operation.example,
        }
        made["requestBody"] = {"required": True, "content": {"application/json": content}}
    return made


def _responses(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {
        media: {"schema": schema} for media, schema in operation.others.items()
    }
    if operation.answer is not None:
        content["application/json"] = {"schema": operation.answer}
    served = 503 in operation.refusals and not operation.open
    made: dict[str, Any] = {
        "200": {
            "description": "Done",
            "content": content,
            **({"headers": _refer(_RESPONSE_HEADERS)} if served else {}),
        }
    }
    for status in operation.refusals:
        retried = status in (429, 503)
        made[str(status)] = {
            "description": _REFUSALS[status],
            "content": {"application/json": {"schema": {"$ref": _SCHEMAS + "Error"}}},
            **({"headers": _refer(("Retry-After",))} if retried else {}),
        }
    return made


def _refer(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


_REFUSALS = {
    400: "The request has to be changed; the error names the field",
    401: "No key of this service",
    403: "The key is not for this",
    404: "No such model",
    408: "The body did not come in time",
    413: "The body is larger than this service reads",
    429: "Too much at this moment, or for this key",
    500: "The engine failed, or a bug of ours",
    503: "Nobody can answer now",
}
_NULLABLE_TEXT = {"type": ["string", "null"]}
_ERROR = _object(
    "error",
    error=_object(
        *("message", "type", "param", "code"),
        message=_TEXT,
        type=_TEXT,
        param=_NULLABLE_TEXT,
        code=_NULLABLE_TEXT,
    ),
) | {
    "example": {
        "error": {
            "message": "Invalid value for 'temperature': \"hot\". Input should be a valid number.",
            "type": "invalid_request_error",
            "param": "temperature",
            "code": "invalid_value",
        }
    }
}
_REQUEST_HEADERS: dict[str, Any] = {
    PRIORITY_HEADER: {
        "name": PRIORITY_HEADER,
        "in": "header",
        "description": "Class of the request; default the key's, `standard` without keys",
        "schema": {"type": "string", "enum": [priority.value for priority in Priority]},
    },
    REQUEST_ID_HEADER: {
        "name": REQUEST_ID_HEADER,
        "in": "header",
        "description": "The caller's id of the request, up to 128 printable characters; echoed",
        "schema": _TEXT,
    },
}
_RESPONSE_HEADERS: dict[str, Any] = {
    REQUEST_ID_HEADER: {"description": "The caller's id or a new one", "schema": _TEXT},
    TIER_HEADER: {"description": "Degradation tier, 0 to 4", "schema": _TEXT},
    DEGRADED_HEADER: {"description": "What the tier changed of the request", "schema": _TEXT},
    "Retry-After": {"description": "Seconds", "schema": _TEXT},
}
