"""What was asked and answered, in words? Kept only where `logs.prompts` asks for it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from serving.messages import DONE, EngineError, EngineReply
from serving.requests import Body


class Texts:
    """Of one request. `told` puts them together, which costs more than keeping them."""

    def __init__(self) -> None:
        self._body: Body | None = None
        self._replies: list[EngineReply] = []

    def asked(self, body: Body) -> None:
        """The request."""
        self._body = body

    def answered(self, replies: Sequence[EngineReply]) -> None:
        """What was sent to the caller."""
        self._replies += replies

    def told(self) -> dict[str, Any]:
        """`prompt` as it was sent, and `answer`: the text of each choice."""
        return {"prompt": self._prompt(), "answer": self._answer()}

    def _prompt(self) -> Any:
        if self._body is None:
            return None
        field = self._body.prompt_field
        return self._body.model_dump(include={field}, exclude_unset=True)[field]

    def _answer(self) -> list[str]:
        choices: defaultdict[int, str] = defaultdict(str)
        for reply in self._replies:
            for choice in _choices(reply):
                choices[choice.get("index", 0)] += _text(choice)
        return [choices[index] for index in sorted(choices)]


def _choices(reply: EngineReply) -> list[dict[str, Any]]:
    if isinstance(reply, EngineError) or reply == DONE:
        return []
    try:
        event = json.loads(reply) if isinstance(reply, str) else reply
    except ValueError:
        return []
    found: list[dict[str, Any]] = event.get("choices") or []
    return found


def _text(choice: dict[str, Any]) -> str:
    said = choice.get("delta") or choice.get("message") or {}
    text = said.get("content") or choice.get("text") or ""
    # Half a surrogate pair can be written in JSON, and not in UTF-8.
    return str(text).encode(errors="replace").decode()
