"""`shardwise chat`: talk to the running service through its HTTP endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import typer

from cli.console import out
from cluster.errors import InputError, ShardwiseError, UnavailableError
from serving.instance import Instance

_TIMEOUT = httpx.Timeout(10.0, read=300.0)


def command(
    message: Annotated[str | None, typer.Argument(help="One question; without it, a chat.")] = None,
    model: Annotated[str | None, typer.Option(help="Default: the planned model.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Default: what the model's context leaves.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 0.0,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="SHARDWISE_API_KEY", help="Where the service asks for one."),
    ] = None,
) -> None:
    """Ask, and print the answer as it comes."""
    progress = Instance.default().progress()
    if progress is None or progress.phase != "ready":
        raise UnavailableError("no service is running here. Fix: `make up` or `shardwise up`.")
    console = out()
    asked: dict[str, Any] = {
        "model": model or progress.models[0],
        "temperature": temperature,
        "stream": True,
    }
    if max_tokens is not None:
        asked["max_tokens"] = max_tokens
    history: list[dict[str, str]] = []
    for question in [message] if message is not None else _questions():
        history.append({"role": "user", "content": question})
        answer = ""
        for text in _stream(progress.endpoint, {**asked, "messages": history}, api_key=api_key):
            answer += text
            console.print(text, end="", markup=False)
        console.print()
        history.append({"role": "assistant", "content": answer})


def _questions() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            return


def _stream(endpoint: str, body: dict[str, Any], *, api_key: str | None) -> Iterator[str]:
    """Pieces of the answer. Raises UnavailableError with what the service said."""
    url = f"{endpoint}/chat/completions"
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        with httpx.stream(
            "POST", url, json=body, headers=headers, timeout=_TIMEOUT, trust_env=False
        ) as response:
            if response.status_code != 200:
                response.read()
                raise _refusal(response)
            for line in response.iter_lines():
                payload = line.removeprefix("data: ")
                if payload and payload != "[DONE]":
                    yield _piece(payload)
    except httpx.HTTPError as error:
        raise UnavailableError(
            f"{url} does not answer: {error}. Fix: `shardwise status`."
        ) from error


def _piece(payload: str) -> str:
    data = json.loads(payload)
    if "error" in data:
        raise UnavailableError(f"the answer broke off: {data['error']['message']}")
    choices = data.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


def _refusal(response: httpx.Response) -> ShardwiseError:
    """Bad input where the service says so, else the service's trouble."""
    mistaken = 400 <= response.status_code < 500 and response.status_code != 429
    return (InputError if mistaken else UnavailableError)(_message(response))


def _message(response: httpx.Response) -> str:
    try:
        return f"HTTP {response.status_code}: {response.json()['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}: {response.text[:200]}"
