"""Which policy does a request ask for, and of which conversation is it? Two headers say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serving.errors import ApiError, bad_request
from serving.long_input.policies import CHOICES, MEMORY

POLICY_HEADER = "X-Shardwise-Long-Input"
CONVERSATION_HEADER = "X-Shardwise-Conversation"
_LONGEST_ID = 128


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the caller says. `policy` None: the service's own; `conversation` None: none."""

    policy: str | None = None
    conversation: str | None = None


def choice_of(headers: Mapping[str, str]) -> Choice:
    """What the headers say. Raises ApiError (400)."""
    policy = _policy(headers.get(POLICY_HEADER))
    conversation = headers.get(CONVERSATION_HEADER)
    if conversation is not None and not _usable(conversation):
        raise bad_request(
            f"Header {CONVERSATION_HEADER} has to be 1 to {_LONGEST_ID} printable ASCII "
            "characters.",
            param=CONVERSATION_HEADER,
            code="invalid_value",
        )
    if policy == MEMORY and conversation is None:
        raise no_conversation()
    return Choice(policy=policy, conversation=conversation)


def no_conversation() -> ApiError:
    """400: there is nothing to remember by."""
    return bad_request(
        f"The long-input policy '{MEMORY}' needs the header {CONVERSATION_HEADER}: an id of your "
        "own for the conversation, the same in each of its requests.",
        param=CONVERSATION_HEADER,
        code="missing_parameter",
    )


def _policy(value: str | None) -> str | None:
    if value is None:
        return None
    policy = value.strip().lower()
    if policy not in CHOICES:
        raise bad_request(
            f"Header {POLICY_HEADER} is '{value}'; use {', '.join(CHOICES[:-1])} or {CHOICES[-1]}.",
            param=POLICY_HEADER,
            code="invalid_value",
        )
    return policy


def _usable(conversation: str) -> bool:
    return (
        0 < len(conversation) <= _LONGEST_ID
        and conversation.isascii()
        and conversation.isprintable()
    )
