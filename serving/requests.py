"""Which request bodies are accepted? OpenAI's fields, and vLLM's sampling extras, by type.

Validated here and not by the engine, so that a mistake costs no queue and no round trip, and
comes back naming the field. Types are strict, as OpenAI's are: the text "0.5" is no number. An
unknown field is an error: a misspelt `max_token` that is silently ignored costs the caller more
than a 400.

Invariant: a body has one error, wherever it has more. Kept one by one, those of a few megabytes of
nonsense would take gigabytes.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, from_json, to_json

from serving.errors import ApiError, bad_request, shown
from serving.messages import Kind

# vLLM's ceiling is the size of a batch; a request for more copies than this is a mistake.
MAX_CHOICES = 128
# OpenAI's ceiling of inputs to one request, where it has one.
MAX_PROMPTS = 2048
# What OpenAI and vLLM generate on /v1/completions if the caller sets no limit.
DEFAULT_COMPLETION_TOKENS = 16

TokenId = Annotated[int, Field(ge=0)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
_ItemT = TypeVar("_ItemT")
Prompts = Annotated[list[_ItemT], Field(max_length=MAX_PROMPTS, fail_fast=True)]


class _Body(BaseModel):
    # Unknown fields are let in and refused below: pydantic would make an error of each of them.
    model_config = ConfigDict(
        extra="allow",
        strict=True,
        allow_inf_nan=False,
        json_schema_extra={"additionalProperties": False},
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.model_extra or ():
            raise PydanticCustomError(_UNKNOWN, "unknown field", {"name": name})
        return self


class StreamOptions(_Body):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ResponseFormat(_Body):
    """`response_format` of any kind."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class _Sampling(_Body):
    """What both endpoints share."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[str, float], Field(fail_fast=True)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    # vLLM's extensions, which its clients and benchmarks send.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    structured_outputs: dict[str, Any] | None = None


class TextPart(_Body):
    """A part of a message. Only text: the gateway could not count the tokens of an image."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message; tool calls, names and the like pass through as they are."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None


class ChatBody(_Sampling):
    """POST /v1/chat/completions."""

    kind: ClassVar[Kind] = "chat"

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def prompt_field(self) -> str:
        """Where the prompt is, for messages to the caller."""
        return "messages"

    @property
    def output_limit(self) -> int | None:
        """Most output tokens asked for, None for as many as fit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities are asked for."""
        return bool(self.logprobs)


class CompletionBody(_Sampling):
    """POST /v1/completions."""

    kind: ClassVar[Kind] = "completions"

    prompt: str | TokenIds | Prompts[str] | Prompts[TokenIds]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None

    @property
    def prompt_field(self) -> str:
        """Where the prompt is, for messages to the caller."""
        return "prompt"

    @property
    def output_limit(self) -> int | None:
        """Most output tokens asked for, None for `DEFAULT_COMPLETION_TOKENS`."""
        return self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities are asked for (0: those of the chosen tokens)."""
        return self.logprobs is not None


class EmbeddingBody(_Body):
    """POST /v1/embeddings."""

    kind: ClassVar[Kind] = "embeddings"
    # A request like the others, of which nothing is generated.
    stream: ClassVar[None] = None
    stream_options: ClassVar[None] = None
    n: ClassVar[None] = None
    min_tokens: ClassVar[None] = None
    output_limit: ClassVar[int] = 0
    wants_logprobs: ClassVar[bool] = False
    prompt_field: ClassVar[str] = "input"

    model: str
    input: str | TokenIds | Prompts[str] | Prompts[TokenIds]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None
    # vLLM's extension.
    add_special_tokens: bool | None = None

    @property
    def prompt(self) -> str | list[int] | list[str] | list[list[int]]:
        """What is embedded."""
        return self.input


Generating = ChatBody | CompletionBody
Body = Generating | EmbeddingBody
BodyKind = type[ChatBody] | type[CompletionBody] | type[EmbeddingBody]


class TokenizeBody(_Body):
    """POST /tokenize: a prompt, or messages. Without a model the planned one's tokenizer."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool = True
    tools: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(_Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]


_ParsedT = TypeVar("_ParsedT", bound=_Body)
_UNKNOWN = "unknown_field"


def parse_body(raw: bytes, kind: BodyKind) -> Body:
    """The validated body of a generating request. Raises ApiError (400) naming the field."""
    body = validated(raw, kind)
    _check_together(body)
    return body


def validated(raw: bytes, kind: type[_ParsedT]) -> _ParsedT:
    """A body field by field. Raises ApiError (400) naming the field."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _explain(max(error.errors(include_url=False), key=_exactness), raw) from error


def _exactness(error: ErrorDetails) -> tuple[bool, int]:
    """Where types are alternatives, each complains: the deepest complaint is the most exact.

    But for a list of the right type that is too long: the other types say that it is not theirs.
    """
    return error["type"] == "too_long", len(error["loc"])


def _check_together(body: Body) -> None:
    """What no field alone can tell."""
    if isinstance(body, EmbeddingBody):
        return
    if body.stream_options is not None and not body.stream:
        raise _conflict("stream_options", "needs 'stream': true")
    wanted = body.response_format
    if wanted is not None and wanted.type == "json_schema" and wanted.json_schema is None:
        raise _conflict("response_format.json_schema", "is missing, and type is 'json_schema'")
    if isinstance(body, CompletionBody):
        if body.max_tokens == 0 and not body.echo:
            raise _conflict("max_tokens", "may be 0 only with 'echo': true")
        return
    if body.top_logprobs and not body.logprobs:
        raise _conflict("top_logprobs", "needs 'logprobs': true")
    if body.tool_choice not in (None, "none") and not body.tools:
        raise _conflict("tool_choice", "needs 'tools'")


def _conflict(param: str, problem: str) -> ApiError:
    return bad_request(f"'{param}' {problem}.", param=param, code="invalid_value")


def _explain(error: ErrorDetails, raw: bytes) -> ApiError:
    if error["type"] == "json_invalid":
        return bad_request(
            f"The request body is not valid JSON in UTF-8. {error['msg']}. Send a JSON object.",
            code="invalid_json",
        )
    if not error["loc"] and error["type"] != _UNKNOWN:
        return bad_request("The request body must be a JSON object.", code="invalid_json")
    param = shown(_field(error, from_json(raw)))
    if error["type"] == _UNKNOWN:
        return bad_request(
            f"Unrecognized request argument supplied: {param}.",
            param=param,
            code="unknown_parameter",
        )
    if error["type"] == "missing":
        return bad_request(
            f"Missing required parameter: '{param}'.", param=param, code="missing_parameter"
        )
    value = shown(to_json(error["input"]).decode())
    return bad_request(
        f"Invalid value for '{param}': {value}. {error['msg']}.", param=param, code="invalid_value"
    )


def _field(error: ErrorDetails, data: Any) -> str:
    """The field's path in the body, without the names of type alternatives in pydantic's path."""
    path: list[str] = []
    for part in error["loc"]:
        if part in data if isinstance(data, dict) else isinstance(part, int):
            data = data[part]
            path.append(str(part))
    if error["type"] == "missing":
        path.append(str(error["loc"][-1]))
    if error["type"] == _UNKNOWN:
        path.append(error["ctx"]["name"])
    return ".".join(path)
