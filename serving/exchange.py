"""How does a gateway keep in step with the controller?

It sends its report and follows the directive that comes back, for ever. If the controller is away,
slow or wrong, the last directive stays in force: serving goes on without it. A tier does not stay
for ever: after `FAIL_OPEN_S` nobody is degraded on the word of a controller that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from serving.control.controller_watch import ControllerWatch
from serving.messages import Directive, GatewayReport
from serving.service import Service

EXCHANGE_INTERVAL_S = 0.5
# A controller that takes longer is as good as away.
EXCHANGE_TIMEOUT_S = 5.0

FAIL_OPEN_S = 60.0

Exchange = Callable[[GatewayReport], Awaitable[Directive]]

logger = logging.getLogger("ray.serve")


async def keep_in_step(
    service: Service,
    exchange: Exchange,
    *,
    watch: ControllerWatch,
    interval_s: float = EXCHANGE_INTERVAL_S,
    timeout_s: float = EXCHANGE_TIMEOUT_S,
    fail_open_s: float = FAIL_OPEN_S,
) -> None:
    """Exchange until cancelled. Says once that the controller is away, and once that it is back.

    `watch` hears whether it answers.
    """
    away = False
    heard_s = time.monotonic()
    while True:
        asked_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                directive = await exchange(service.report())
            watch.answered(directive.place)
            service.follow(directive)
            heard_s = time.monotonic()
            if away:
                logger.warning("the controller is back")
            away = False
        except Exception as error:
            if isinstance(error, TimeoutError):
                watch.silent(asked_s)
            else:
                watch.refused()
            if not away:
                logger.warning("the controller is away, its last word stays in force: %r", error)
            away = True
            if time.monotonic() - heard_s > fail_open_s:
                service.fail_open()
        await asyncio.sleep(interval_s)
