"""Errors of the HTTP API in OpenAI's shape: {"error": {message, type, param, code}}."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


class ApiError(Exception):
    """An answer other than 200. `retry_after_s` becomes a Retry-After header."""

    # A plain class: on a frozen dataclass Python could not set `__traceback__` and `__context__`.
    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str,  # noqa: A002  # OpenAI's name for it
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The response body."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """Extra response headers."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


def shown(value: str, *, most: int = 80) -> str:
    """What a caller sent, as an error quotes it: no longer than this many characters."""
    return value if len(value) <= most else f"{value[: most - 3]}..."


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the caller has to change the request."""
    return ApiError(400, message, type="invalid_request_error", code=code, param=param)


def unauthorized(problem: str) -> ApiError:
    """401: who asks is not known."""
    return ApiError(
        401,
        f"{problem} Send 'Authorization: Bearer KEY' with a key that the operator gave you.",
        type="authentication_error",
        code="invalid_api_key",
    )


def forbidden(message: str, *, param: str, code: str) -> ApiError:
    """403: who asks is known, and may not."""
    return ApiError(403, message, type="permission_error", code=code, param=param)


def rate_exceeded(
    *, key: str, what: str, limit: float, left: float, wanted: float, retry_after_s: float
) -> ApiError:
    """429: the key has used its budget. `what`: requests or tokens, per minute."""
    return ApiError(
        429,
        f"The API key '{key}' may ask for {limit:,.0f} {what} per minute; {max(0.0, left):,.0f} "
        f"are left and {wanted:,.0f} are needed. Retry after {max(1, math.ceil(retry_after_s))} s.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after_s=retry_after_s,
    )


def prompt_over_rate(*, prompt: int, limit: float, key: str) -> ApiError:
    """400: waiting would not help."""
    return bad_request(
        f"The prompt has {prompt:,} tokens, and the API key '{key}' may use {limit:,.0f} per "
        "minute: it would never be let in. Shorten the prompt, or ask for a higher "
        "tokens_per_minute.",
        code="prompt_over_rate_limit",
    )


def unknown_model(model: str, *, known: Iterable[str]) -> ApiError:
    """404 with the models there are."""
    names = ", ".join(f"'{name}'" for name in known)
    return ApiError(
        404,
        f"The model '{shown(model)}' does not exist here. This service has {names}.",
        type="invalid_request_error",
        code="model_not_found",
        param="model",
    )


def wrong_model_kind(model: str, *, embeds: bool) -> ApiError:
    """400: the model is here, and not for this."""
    what = (
        "makes embeddings, it generates no text. Ask it at /v1/embeddings"
        if embeds
        else "generates text, it has no embeddings. Ask an embedding model: one whose pool has "
        "'runner: pooling' among its engine_args in the plan"
    )
    return bad_request(f"The model '{model}' {what}.", param="model", code="wrong_model_kind")


def context_too_long(
    *, prompt: int, output: int, limit: int, param: str, least: int = 1
) -> ApiError:
    """400 with the numbers a caller needs to mend it.

    `param`: the field the prompt came in. `least`: output tokens there have to be.
    """
    if prompt + least > limit:
        message = (
            f"This model's maximum context length is {limit} tokens, but the prompt has {prompt}. "
            f"Shorten the prompt to at most {limit - least} tokens."
        )
    else:
        message = (
            f"This model's maximum context length is {limit} tokens, but {prompt + output} were "
            f"asked for ({prompt} in the prompt, {output} for the output). Ask for at most "
            f"{limit - prompt} output tokens, or shorten the prompt."
        )
    return bad_request(message, param=param, code="context_length_exceeded")


def prompt_over_limit(prompt: int, limit: int, *, param: str) -> ApiError:
    """400: it would fit the model, but not what the operator lets in."""
    return bad_request(
        f"This service takes prompts of at most {limit} tokens (long_input.limit_tokens), and this "
        f"one has {prompt}. Shorten it, or let the gateway do so: header X-Shardwise-Long-Input.",
        param=param,
        code="context_length_exceeded",
    )


def too_long_to_cut(prompt: int, limit: int, *, param: str) -> ApiError:
    """400: cutting it would take too long."""
    return bad_request(
        f"The prompt has {prompt} tokens; this service shortens prompts of at most {limit} "
        "(long_input.longest_tokens). Shorten it.",
        param=param,
        code="context_length_exceeded",
    )


def body_too_large(limit_bytes: int) -> ApiError:
    """413: the body is beyond what the gateway reads."""
    return ApiError(
        413,
        f"The request body is larger than {limit_bytes} bytes, the most this service reads "
        "(limits.max_body_bytes).",
        type="invalid_request_error",
        code="request_too_large",
    )


def body_too_slow(limit_s: float) -> ApiError:
    """408: the body did not come in time."""
    return ApiError(
        408,
        f"The request body was not complete after {limit_s:g} s, the longest this service waits "
        "for it (limits.body_s).",
        type="invalid_request_error",
        code="request_timeout",
    )


def too_busy(message: str, *, retry_after_s: float, code: str) -> ApiError:
    """429: come back later."""
    return ApiError(429, message, type="rate_limit_error", code=code, retry_after_s=retry_after_s)


def unavailable(message: str, *, retry_after_s: float) -> ApiError:
    """503: no replica can answer now."""
    return ApiError(
        503, message, type="service_unavailable", code="no_replica", retry_after_s=retry_after_s
    )


def deadline_exceeded(limit_s: float, *, header: str) -> ApiError:
    """504: the caller did not want to wait any longer."""
    return ApiError(
        504,
        f"The answer was not complete within the {limit_s:g} s of header {header}; the request "
        "was taken back. Allow more time, ask for fewer tokens, or try again when load is lower.",
        type="timeout_error",
        code="deadline_exceeded",
    )


def from_engine(status: int, message: str) -> ApiError:
    """The engine's own refusal or failure, passed on in our shape."""
    kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    return ApiError(status, message, type=kind, code="engine_error")


def internal_error() -> ApiError:
    """500: a bug of ours; its details are for the log."""
    return ApiError(500, "Internal error; the gateway's log has the details.", type="server_error")
