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

    def break_off(self) -> bool:
        """The stream broke: tokens whose text never came are forgotten.

        Those are the first bytes of a character whose others were still to come. Returns whether
        what is left can be gone on from.
        """
        while self.tokens and self._decode(self.tokens[-_LOOK_BACK:]).endswith(_PARTIAL):
            self.tokens.pop()
        return True

    @property
    def ahead(self) -> bool:
        """Whether the caller has text of the token that comes next."""
        return False

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


class TextTranscript(Transcript):
    """Of a stream whose engine holds text back, in case a stop string follows.

    Such an engine has told the ids of tokens whose text it has not sent. After a break those are
    generated anew; as text ends anywhere inside a token, so may the first characters of the next
    one, which the caller has: they are cut out of what the next replica says.

    Invariants: `_said` is the text of `tokens` as far as an engine has sent it; the caller has
    `_sent` characters, never fewer.
    """

    def begin(self) -> None:
        """See `Transcript.begin`."""
        super().begin()
        self._said = ""
        self._sent = 0

    def break_off(self) -> bool:
        """See `Transcript.break_off`; not, where text is not what the ids decode to."""
        super().break_off()
        text = self._decode(self.tokens)
        if not text.startswith(self._said):
            return False
        while len(text) > len(self._said):
            self.tokens.pop()
            text = self._decode(self.tokens)
        self._said = text
        return True

    @property
    def ahead(self) -> bool:
        """See `Transcript.ahead`."""
        return self._sent > len(self._said)

    def _hear(self, reply: EngineReply) -> EngineReply | None:
        told = super()._hear(reply)
        if not isinstance(told, str) or told == DONE:
            return told
        event = json.loads(told)
        for choice in event["choices"]:
            holder, name = (choice, "text") if "text" in choice else (choice["delta"], "content")
            before, piece = len(self._said), holder.get(name) or ""
            self._said += piece
            if self._sent > before:
                holder[name] = self._said[self._sent :]
                told = json.dumps(event, separators=(",", ":"))
        self._sent = max(self._sent, len(self._said))
        return told


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
