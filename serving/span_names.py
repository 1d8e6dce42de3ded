"""What are the attributes and events of a request's spans called?

As in OpenTelemetry's conventions for HTTP and generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/); what only this service has begins with
`shardwise.`. No attribute, event or status holds text of a prompt or an answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from serving.messages import Kind

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
# Values of the first, by kind of request.
OPERATIONS: Mapping[Kind, str] = {
    "chat": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
ERROR_TYPE = "error.type"

REQUEST_ID = "shardwise.request_id"
ENGINE_REQUEST_ID = "shardwise.engine_request_id"
KEY = "shardwise.key"
POOL = "shardwise.pool"
PRIORITY = "shardwise.priority"
TIER = "shardwise.tier"
CHANGES = "shardwise.changes"
REPLICA = "shardwise.replica"
ATTEMPT = "shardwise.attempt"
REASON = "shardwise.attempt.reason"
OUTCOME = "shardwise.outcome"

TOKENISED = "tokenised"
FIRST_TOKEN = "first_token"
STREAM_END = "stream_end"
