"""Requests made from our own description, in order and not: each gets an answer it describes."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from serving.bundled import bundled_path
from serving.tokens import PromptTokenizer
from tests.serving.fakes import Stage

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
NAMES = {"/v1/embeddings": "small"}

tokenizer = PromptTokenizer.load(str(bundled_path("smollm2-135m-instruct")))
stage = Stage(
    with_light=True, embedding=("light",), encode=tokenizer.encode, decode=tokenizer.decode
)
schema = schemathesis.openapi.from_asgi("/openapi.json", stage.app())


@schema.exclude(path=["/status", "/metrics/targets"]).parametrize()
@settings(
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_request_gets_an_answer_that_is_described(case: Case) -> None:
    stage.ready("a", light=["b"])
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = NAMES.get(case.path, "big")
    response = case.call()
    case.validate_response(response, checks=CHECKS)
    stage.assert_idle()
