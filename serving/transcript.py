"""What has a stream said so far, in tokens? Kept so that another replica can go on from there.

The engine is asked for its token ids; before an event goes to the caller they are cut out again as
text, since parsing every event would cost more than sending it. Inside a JSON string every quote is
escaped, so what is looked for is nothing a model can say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from serving.messages import DONE, USAGE_ALONE, EngineReply

_IDS = ',"token_ids":'
_PROMPT = ',"prompt_token_ids":'
_SILENT = ('"delta":{}', '"finish_reason":null')  # sent only because ids were asked for
_ENDED = '"finish_reason":"'
_PARTIAL = "\ufffd"  # what a tokenizer makes of a character whose bytes are not all there


class Transcript:
    """One stream's. `decode`: text of token ids."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self.begin()

    def begin(self) -> None:
        """Nothing has been said: the request is tried anew."""
        self._first: str | None = None
        self.prompt: list[int] = []
        self.tokens: list[int] = []
        self.ended = False  # the engine has said why it ends
        self.usage = False  # and what it used

    @property
    def first(self) -> dict[str, Any]:
        """The first event, whose id, time and model all others have."""
        found: dict[str, Any] = json.loads(self._first or "{}")
        return found

    def hear(self, replies: Sequence[EngineReply]) -> list[EngineReply]:
        """Take note of replies; what is for the caller of them."""
        return [told for reply in replies if (told := self._hear(reply)) is not None]

    def break_off(self) -> None:
        """The stream broke: tokens whose text never came are forgotten.

        Those are the first bytes of a character whose others were still to come.
        """
        while self.tokens and self._decode(self.tokens[-_LOOK_BACK:]).endswith(_PARTIAL):
            self.tokens.pop()

    def _hear(self, reply: EngineReply) -> EngineReply | None:
        if not isinstance(reply, str) or reply == DONE:
            return reply
        reply, prompt = _cut(reply, _PROMPT)
        if prompt and not self.prompt:  # else it is that of a resumption
            self.prompt = _numbers(prompt)
        reply, ids = _cut(reply, _IDS)
        if ids:
            self.tokens += _numbers(ids)
        self.ended = self.ended or _ENDED in reply
        self.usage = self.usage or USAGE_ALONE in reply
        if self._first is None:
            self._first = reply
        return None if all(part in reply for part in _SILENT) else reply


_LOOK_BACK = 16  # tokens: more than any character is spread over


def _cut(event: str, name: str) -> tuple[str, str]:
    """An event with null for the list of this name, and what was in the list."""
    begin = event.find(name + "[")
    if begin < 0:
        return event, ""
    begin += len(name)
    end = event.index("]", begin)
    return f"{event[:begin]}null{event[end + 1 :]}", event[begin + 1 : end]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
