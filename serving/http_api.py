"""OpenAI's HTTP API around a `Service`: an ASGI application without Ray.

The generating routes are `serving.completions_route`; the others are here. Every error, unknown
URLs and wrong methods included, has OpenAI's shape. Where the time counts, a request goes straight
to its route: FastAPI's own way there costs as much as parsing the body.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.admission import PoolFront
from serving.completions_route import CompletionsRoute, error_response
from serving.errors import ApiError, internal_error, unavailable
from serving.journey import CALLER_LEFT
from serving.openapi import document
from serving.requests import BodyKind, ChatBody, CompletionBody, EmbeddingBody
from serving.service import Service
from serving.tokenize_routes import add_tokenize_routes

GENERATING: dict[str, BodyKind] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/embeddings": EmbeddingBody,
}

STATUS_TIMEOUT_S = 5.0

logger = logging.getLogger("ray.serve")


Status = Callable[[], Awaitable[dict[str, Any]]]


class HttpApi:
    """The ASGI application. `routes`: of POST requests, by path; everything else is `others`'."""

    def __init__(self, routes: Mapping[str, ASGIApp], others: FastAPI) -> None:
        self._routes = routes
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        direct = scope["type"] == "http" and scope["method"] == "POST"
        route = self._routes.get(scope["path"]) if direct else None
        await (route or self._others)(scope, receive, send)


def build_app(service: Service, *, status: Status, application: str = "") -> HttpApi:
    """The application; tests give it a service over a fake link.

    `status`: the controller's account of the whole service; may raise anything if it is away.
    `application`: what all gateways of one deployment have in common, and no others.
    """
    app = FastAPI(
        title="Shardwise", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(Exception, _answer_bug)
    routes = {path: CompletionsRoute(service, kind) for path, kind in GENERATING.items()}
    for path, route in routes.items():  # for other methods: 405
        app.router.routes.append(Route(path, route, methods=["POST"]))
    _add_model_routes(app, service)
    add_tokenize_routes(app, service)
    _add_operation_routes(app, service, status=status, application=application)
    return HttpApi(routes, app)


def _add_model_routes(app: FastAPI, service: Service) -> None:
    started_s = int(service.now_s())

    @app.get("/v1/models")
    async def list_models(request: Request) -> dict[str, Any]:
        caller = service.door.caller(request.headers)
        return {
            "object": "list",
            "data": [
                _card(front, started_s=started_s)
                for name, front in service.fronts.items()
                if caller.may_use(name)
            ],
        }

    @app.get("/v1/models/{model:path}")
    async def get_model(model: str, request: Request) -> dict[str, Any]:
        caller = service.door.caller(request.headers)
        front = service.front_of(model)
        caller.check_model(model)
        return _card(front, started_s=started_s)


def _add_operation_routes(
    app: FastAPI, service: Service, *, status: Status, application: str
) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether this process answers."""
        return {"status": "ok", "application": application}

    @app.get("/ready")
    async def ready() -> Response:
        """Whether a replica of the main pool answers, or is started by the next request."""
        if service.ready:
            return JSONResponse({"status": "ready", "tier": int(service.tier)})
        raise unavailable("No replica of the planned model answers yet.", retry_after_s=1.0)

    @app.get("/status")
    async def whole_status() -> dict[str, Any]:
        """What `shardwise status` shows."""
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                return await status()
        except Exception as error:
            raise ApiError(
                503,
                f"The controller does not answer ({error!r}); requests are served all the same.",
                type="service_unavailable",
                code="controller_away",
                retry_after_s=STATUS_TIMEOUT_S,
            ) from error

    @app.get("/openapi.json")
    async def openapi() -> dict[str, Any]:
        return document()

    @app.get("/metrics")
    async def metrics() -> Response:
        service.refresh_gauges()
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/metrics/targets")
    async def targets() -> list[dict[str, Any]]:
        """Where each gateway's own metrics are, as Prometheus discovers them (`http_sd`)."""
        told = await whole_status()
        return [{"targets": sorted(gateway["address"] for gateway in told["gateways"])}]


def _card(front: PoolFront, *, started_s: int) -> dict[str, Any]:
    return {
        "id": front.model_name,
        "object": "model",
        "created": started_s,
        "owned_by": "shardwise",
        "max_model_len": front.max_context,
    }


async def _answer_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, headers={})


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ApiError(
        error.status_code,
        f"{request.method} {request.url.path}: {error.detail}.",
        type="invalid_request_error",
        code="method_not_allowed" if error.status_code == 405 else "unknown_url",
    )
    return error_response(known, headers=error.headers or {})


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CALLER_LEFT)


async def _answer_bug(_request: Request, error: Exception) -> Response:
    logger.error("unexpected error in the gateway", exc_info=error)
    return error_response(internal_error(), headers={})
