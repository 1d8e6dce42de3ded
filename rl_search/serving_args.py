"""How are serving options said to vLLM? Drafts, weights on the host, the prefix cache.

A drafter is one of vLLM's own methods (`ngram`: copies of the prompt, `mtp`: the checkpoint's
multi-token-prediction layers), else a draft model. Without one named it is `ngram`, which needs no
weights. The light pool gets none of these: its drafts and offload would be another model's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cluster.costmodel.estimate import PLAIN, Serving
from cluster.costmodel.speculation import Speculation
from cluster.model.plan import PoolSection, ServingSection

GIB = 1024.0**3
DRAFT_METHODS = ("ngram", "mtp")
NGRAM_WINDOW = 4  # tokens of a match in the prompt


def with_serving(
    pool: PoolSection, serving: Serving, *, drafter: str | None, prefix_hit: float
) -> PoolSection:
    """`pool` with the engine arguments and the section of `serving`; as it is where plain."""
    if serving == PLAIN and prefix_hit == 0.0:
        return pool
    added = serving_args(serving, drafter=drafter, prefix_hit=prefix_hit)
    drafts = serving.speculation
    section = ServingSection(
        backend=serving.backend,
        prefix_hit=prefix_hit,
        draft_tokens=None if drafts is None else drafts.drafts,
        draft_acceptance=0.0 if drafts is None else drafts.acceptance,
        draft_share=0.0 if drafts is None else drafts.draft_share,
        offload_bytes=serving.offload_bytes,
    )
    return pool.model_copy(
        update={"engine_args": {**pool.engine_args, **added}, "serving": section}
    )


def serving_of(section: ServingSection | None) -> Serving:
    """The options a pool was estimated with; `prefix_hit` belongs to the workload."""
    if section is None:
        return PLAIN
    drafts = None
    if section.draft_tokens is not None:
        drafts = Speculation(
            drafts=section.draft_tokens,
            acceptance=section.draft_acceptance,
            draft_share=section.draft_share,
        )
    return Serving(backend=section.backend, speculation=drafts, offload_bytes=section.offload_bytes)


def serving_args(serving: Serving, *, drafter: str | None, prefix_hit: float) -> dict[str, Any]:
    """By vLLM's names: `cpu_offload_gb` is GiB a device, `speculative_config` a mapping."""
    args: dict[str, Any] = {}
    if prefix_hit > 0.0:
        args["enable_prefix_caching"] = True
    if serving.offload_bytes > 0.0:
        args["cpu_offload_gb"] = serving.offload_bytes / GIB
    if serving.speculation is not None:
        method = drafter or DRAFT_METHODS[0]
        drafts: dict[str, str | int] = {"num_speculative_tokens": serving.speculation.drafts}
        drafts |= {"method": method} if method in DRAFT_METHODS else {"model": method}
        if method == "ngram":
            drafts["prompt_lookup_max"] = NGRAM_WINDOW
        args["speculative_config"] = drafts
    return args


def plain(serving: Serving) -> Serving:
    """The same engine without drafts and offload."""
    return replace(serving, speculation=None, offload_bytes=0.0)
