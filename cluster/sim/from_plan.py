"""From a plan to what is simulated: its pools, with the cost model's step times.

A replica's cache holds what the plan expects it to hold (or, without an expectation, what the
memory model leaves). Starting a replica takes `boot_s` and reading its weights. Prefill and decode
replicas of a plan are the same layout in two roles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import Case, make_case
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.estimate import Serving
from cluster.costmodel.memory import DEFAULT_HEADROOM, memory_table
from cluster.costmodel.precision import as_held
from cluster.errors import ConfigError, InputError
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import Plan, PoolSection
from cluster.planned_work import planned_work, serving_of
from cluster.pool_capacity import replica_limits
from cluster.sim.lags import lags_of
from cluster.sim.modelled_times import ModelledTimes
from cluster.sim.setup import PoolSetup
from cluster.sim.spec import ReplicaSpec, Role
from cluster.sim.times import StepTimes

BLOCK_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class ColdStart:
    """Seconds to start a replica: `boot_s`, then its weights at `bytes_per_s` a node.

    Measured for the bundled model on CPU cores: 12 s (`bench/cold_start.py`). Of a GPU engine,
    imports, CUDA graphs and warm-up take half a minute or more; 2 GB/s is a local NVMe disk's rate.
    """

    boot_s: float = 30.0
    bytes_per_s: float = 2e9

    def seconds(self, weight_bytes: float) -> float:
        """Of a replica with these weights."""
        return self.boot_s + weight_bytes / self.bytes_per_s


CPU_START = ColdStart(boot_s=10.0)


@dataclass(frozen=True, kw_only=True)
class ReplicaSource:
    """What a replica is made from, beside its layout."""

    model: ModelSpec
    group: NodeGroup
    serving: Serving
    coefficients: Coefficients


def replica_spec(
    source: ReplicaSource,
    layout: Layout,
    *,
    kv_tokens: int,
    weight_bytes: float,
    cold_start_s: float | None = None,
    times: StepTimes | None = None,
) -> ReplicaSpec:
    """A replica of `layout`, whose ranks together cache `kv_tokens` tokens.

    `times` replace the cost model's. Raises ConfigError where a rank could do nothing.
    """
    model = as_held(source.model, source.group.device)
    serving, coefficients = source.serving, source.coefficients
    case = make_case(
        model,
        source.group,
        LayoutTable.from_layouts([layout]),
        coefficients,
        backend=serving.backend,
        version=serving.version,
    ).merged()
    speculation = serving.speculation
    queries = 1 if speculation is None else 1 + speculation.drafts
    seqs = max(1, math.ceil(layout.max_num_seqs / layout.dp))
    modelled = times or ModelledTimes(
        case,
        coefficients,
        queries=queries,
        draft_share=0.0 if speculation is None else speculation.drafts * speculation.draft_share,
        offloaded=serving.offload_bytes,
        most_tokens=layout.max_num_batched_tokens + seqs * queries,
    )
    device = source.group.device
    start = CPU_START if device.kind == "cpu" else ColdStart()
    return ReplicaSpec(
        times=modelled,
        max_num_seqs=seqs,
        chunk=layout.max_num_batched_tokens,
        kv_blocks=max(1, kv_tokens // layout.dp // BLOCK_TOKENS),
        ranks=layout.dp,
        lockstep=model.experts > 0,
        stages=layout.pp,
        block_tokens=BLOCK_TOKENS,
        mixes=bool(case.engine.mixes[0]),
        lag_steps=lag_steps(case, coefficients, serving.backend, layout),
        speculation=speculation,
        start_s=start.seconds(weight_bytes) if cold_start_s is None else cold_start_s,
        devices=layout.devices_per_replica,
        kv_bytes_per_token=kv_bytes_per_token(model),
        transfer_bytes_per_s=max(1.0, device.network_bandwidth * layout.devices_per_replica),
        transfer_s=device.network_latency_s,
    )


def lag_steps(case: Case, coefficients: Coefficients, backend: str, layout: Layout) -> float:
    """Decode steps that a first token waits in the scheduler, of this engine and version."""
    lags = lags_of("cpu" if case.machine.cpu[0] else backend)
    ranked = lags.rank_steps if layout.dp > 1 and bool(case.is_moe[0]) else 0.0
    version = float(coefficients.values[case.engine.build_request][0])
    return (lags.steps + ranked) * version


def kv_bytes_per_token(model: ModelSpec) -> float:
    """Bytes of a token's cache over all layers; windows and states count as if it were kept."""
    elements = sum(count * kind.attention.kv_elements for kind, count in model.layers)
    return float(elements) * model.kv_format.bytes


def pool_setups(
    plan: Plan,
    *,
    models: Callable[[PoolSection], ModelSpec],
    group: NodeGroup,
    replicas: int | None = None,
    disaggregated: tuple[int, int] | None = None,
    cold_start_s: float | None = None,
    coefficients: Coefficients | None = None,
    times: StepTimes | None = None,
) -> tuple[PoolSetup, ...]:
    """The plan's pools; `replicas` of the main pool instead of its initial ones.

    `disaggregated`: (prefill, decode) replicas of the main layout, and no other pool. Raises
    ConfigError or InputError.
    """
    made = []
    for pool in plan.pools:
        if pool.layout.dims:
            raise ConfigError(
                source="plan",
                field=f"pools.{pool.name}.layout.dims",
                problem="cuts operators one by one, which the simulator does not price.",
                fix="plan without --engine any.",
            )
        source = ReplicaSource(
            model=models(pool),
            group=group,
            serving=serving_of(pool),
            coefficients=coefficients if coefficients is not None else default_coefficients(),
        )
        layout = pool.layout.to_layout(replicas=1)
        spec = replica_spec(
            source,
            layout,
            kv_tokens=_kv_tokens(source, pool, plan),
            weight_bytes=pool.model.weight_bytes,
            cold_start_s=cold_start_s,
            times=times,
        )
        initial = pool.replicas.initial
        made.append(
            PoolSetup(
                name=pool.name,
                spec=spec,
                replicas=replicas if replicas is not None and pool.name == "main" else initial,
                limits=replica_limits(pool, plan=plan),
                work=planned_work(pool, plan=plan),
                price_per_device_hour=group.device.price_per_hour,
                replicas_per_node=max(1, group.devices_per_node // spec.devices),
                max_context=max_context(pool),
            )
        )
    if disaggregated is None:
        return tuple(made)
    main, (prefill, decode) = made[0], disaggregated
    if prefill < 1 or decode < 1:
        raise InputError(f"{prefill} prefill and {decode} decode replicas: at least 1 of each.")
    return tuple(
        replace(main, name=role.value, replicas=count, spec=replace(main.spec, role=role))
        for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode))
    )


def max_context(pool: PoolSection) -> int:
    """Tokens of the longest sequence the pool's engine takes."""
    longest = pool.model.max_context
    return min(longest, int(pool.engine_args.get("max_model_len") or longest))


def _kv_tokens(source: ReplicaSource, pool: PoolSection, plan: Plan) -> int:
    if pool.expected is not None and pool.expected.kv_capacity_tokens:
        return pool.expected.kv_capacity_tokens
    model = as_held(source.model, source.group.device)
    table = LayoutTable.from_layouts([pool.layout.to_layout(replicas=1)])
    case = make_case(model, source.group, table, source.coefficients)
    memory = memory_table(
        model,
        source.group.device,
        case.grid,
        table,
        context=plan.workload.isl + plan.workload.osl,
        headroom=DEFAULT_HEADROOM,
        offloaded=source.serving.offload_bytes,
    )
    tokens = int(np.asarray(memory.kv_capacity_tokens)[0])
    if tokens < BLOCK_TOKENS:
        raise ConfigError(
            source="plan",
            field=f"pools.{pool.name}.layout",
            problem="leaves no memory for a KV cache.",
            fix="`shardwise check` names what is too large.",
        )
    return tokens
