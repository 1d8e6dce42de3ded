"""How long will the caller wait? `X-Request-Timeout-Seconds`, for the whole answer.

Ray Serve's header of that name. What is not answered in time is taken back wherever it is, in line
or in the engine: nobody computes what nobody reads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from serving.errors import ApiError, bad_request, deadline_exceeded
from serving.messages import EngineError, EngineReply

TIMEOUT_HEADER = "X-Request-Timeout-Seconds"


def patience_s(headers: Mapping[str, str]) -> float | None:
    """What the caller has set, None for no limit. Raises ApiError (400)."""
    value = headers.get(TIMEOUT_HEADER)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        raise bad_request(
            f"Header {TIMEOUT_HEADER} is '{value}'; give seconds above 0, or leave it out.",
            param=TIMEOUT_HEADER,
            code="invalid_value",
        )
    return seconds


async def within(
    replies: AsyncGenerator[list[EngineReply], None], *, left_s: float, limit_s: float
) -> AsyncGenerator[list[EngineReply], None]:
    """The answer, as far as it comes in time. `left_s`: of the `limit_s` that the caller has set.

    Raises ApiError (504) if none of it does; later the last reply is an `EngineError`.
    """
    due_s = asyncio.get_running_loop().time() + left_s
    begun = False
    async with aclosing(replies):
        while True:
            try:
                async with asyncio.timeout_at(due_s):
                    batch = await anext(replies, None)
            except TimeoutError:
                late: ApiError = deadline_exceeded(limit_s, header=TIMEOUT_HEADER)
                if not begun:
                    raise late from None
                yield [EngineError(status=late.status, message=late.message, retryable=False)]
                return
            if batch is None:
                return
            begun = True
            yield batch
