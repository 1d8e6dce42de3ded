"""Does a service answer? Asked from outside, by `helm test`.

    python -m serving.rayservice.smoke http://HOST:PORT [--model NAME]

Exit code 0: it is ready and, where a model is named, has answered. 1: not, and why.
"""

from __future__ import annotations

import argparse
import os
import sys

import httpx

_LIMIT_S = 60.0


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="serving.rayservice.smoke")
    parser.add_argument("url")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    key = os.environ.get("SHARDWISE_API_KEY")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=arguments.url, headers=headers, timeout=_LIMIT_S) as client:
        try:
            problem = _problem(client, arguments.model)
        except httpx.HTTPError as error:
            problem = f"{arguments.url} does not answer: {error!r}"
    sys.stdout.write(f"{problem or 'ready'}\n")
    return 1 if problem else 0


def _problem(client: httpx.Client, model: str | None) -> str:
    """What is wrong, empty if nothing is."""
    ready = client.get("/ready")
    if not ready.is_success:
        return f"it is not ready: {ready.text}"
    if model is None:
        return ""
    asked = {"model": model, "prompt": "One, two,", "max_tokens": 4}
    answer = client.post("/v1/completions", json=asked)
    if not answer.is_success:
        return f"{model} answered with status {answer.status_code}: {answer.text}"
    return "" if answer.json()["choices"] else f"{model} has said nothing"


if __name__ == "__main__":
    sys.exit(main())
