"""May a plan take over from another while it is being served?

Gateways stay as they are: they know the model's name, its tokenizer, its context and a few engine
arguments from the plan they were started with, so these may not change; layout, batch, replicas and
everything else of the main pool may.
"""

from __future__ import annotations

from cluster.errors import InputError
from cluster.model.plan import Plan, PoolSection
from cluster.model.startable import must_start
from rl_search.pool_checks import DIMS_NOT_SERVED

# What gateways read of the engine's arguments (`serving.gateway`).
_KEPT = ("runner", "convert", "reasoning_parser", "scheduling_policy", "enable_prefix_caching")
_DOWN_AND_UP = "`shardwise down`, then `shardwise up` with the new plan"


def check_servable(plan: Plan) -> None:
    """Raise InputError if a pool has a layout that no replica starts with, or none here."""
    for pool in plan.pools:
        if pool.layout.dims:
            raise InputError(
                f"pool '{pool.name}' has dims of its own: {DIMS_NOT_SERVED}. "
                "Fix: plan with --engine vllm."
            )
        if pool.layout.dp > 1:
            raise InputError(
                f"pool '{pool.name}' has dp = {pool.layout.dp}: `up` serves one engine per "
                "replica (dp = 1). Fix: plan with --max-dp 1, or `shardwise export` and run the "
                "engine yourself."
            )
    must_start(plan)


def successor(running: Plan, wanted: Plan) -> Plan:
    """The plan to be served: `wanted` with the light pool as it runs.

    Raises InputError where the gateways that run could not serve it.
    """
    check_servable(wanted)
    old, new = running.main, wanted.main
    for what, before, after in (
        ("model", old.model.name, new.model.name),
        ("model source", old.model.source, new.model.source),
        ("device", running.cluster.device, wanted.cluster.device),
    ):
        if before != after:
            raise InputError(
                f"the plan is for {what} '{after}', what runs is '{before}'. Fix: re-plan with the "
                f"same {what}; for another one, {_DOWN_AND_UP}."
            )
    promised = context(old)
    if context(new) < promised:
        raise InputError(
            f"the plan serves a context of {context(new)} tokens, callers are promised {promised}. "
            f"Fix: plan with --max-model-len {promised}, or {_DOWN_AND_UP}."
        )
    for name in _KEPT:
        if old.engine_args.get(name) != new.engine_args.get(name):
            raise InputError(
                f"engine argument {name} is {new.engine_args.get(name)!r} in the plan and "
                f"{old.engine_args.get(name)!r} in what runs; gateways go by it. Fix: leave it as "
                f"it is, or {_DOWN_AND_UP}."
            )
    if wanted.light is not None and wanted.light != running.light:
        raise InputError(
            "the plan changes the light pool; only the main one moves. Fix: leave the light pool "
            f"as it runs, or {_DOWN_AND_UP}."
        )
    light = () if running.light is None else (running.light,)
    plan = wanted.model_copy(update={"pools": (new, *light)})
    if same_layout(running, plan):
        raise InputError(
            "layout, engine arguments and replicas of the plan are those that run: nothing would "
            "move."
        )
    return plan


def context(pool: PoolSection) -> int:
    """Longest sequence the pool serves, tokens."""
    longest = pool.model.max_context
    return min(longest, int(pool.engine_args.get("max_model_len") or longest))


def same_layout(running: Plan, wanted: Plan) -> bool:
    """Whether both have the main pool's replicas started in one way, and so many of them."""
    old, new = running.main, wanted.main
    return (old.layout, old.engine_args, old.replicas) == (
        new.layout,
        new.engine_args,
        new.replicas,
    )
