"""Does a new replica answer? It is asked as gateways ask, before any of them may choose it."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from typing import Any

from cluster.model.plan import PoolSection
from serving.direct_link import DirectLink
from serving.messages import EngineError, EngineRequest, Kind, ReplicaReport
from serving.replica_link import LinkError

_REACH_S = 10.0


async def first_answer(
    pool: PoolSection, report: ReplicaReport, *, secret: str, limit_s: float
) -> str:
    """Ask for two tokens (of embedding models for one vector). Empty if they came, else why not."""
    link = DirectLink(secret=secret, reach_s=_REACH_S)
    link.observe([report])
    try:
        async with asyncio.timeout(limit_s):
            return await _ask(link, pool, report.replica_id)
    except TimeoutError:
        return f"replica {report.replica_id} has not answered within {limit_s:g} s"
    except LinkError as error:
        return str(error)
    finally:
        await link.close()


async def _ask(link: DirectLink, pool: PoolSection, replica_id: str) -> str:
    body: dict[str, Any] = {"model": pool.model.name}
    kind: Kind = "embeddings" if pool.engine_args.get("runner") == "pooling" else "completions"
    body |= (
        {"input": "."}
        if kind == "embeddings"
        else {"prompt": ".", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    )
    request = EngineRequest(kind=kind, body=body, request_id=os.urandom(16).hex(), tokens=0.0)
    heard = False
    async with aclosing(link.call(request, replica_id=replica_id)) as replies:  # type: ignore[type-var]
        async for batch in replies:
            for reply in batch:
                if isinstance(reply, EngineError):
                    return f"replica {replica_id} answers {reply.status}: {reply.message}"
            heard = True
    return "" if heard else f"replica {replica_id} has said nothing"
