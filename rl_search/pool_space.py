"""Which layouts can be a prefill or a decode replica of xPyD, and which pairs fit side by side?

Of layouts with the same degrees only those remain that no other beats in both rate and latency, of
any batch, chunk or expert grid. That loses no best pair: what else counts, the devices taken, the
queue's servers and the KV sent, is the same for all of them.

Invariants: every layout obeys the rules and holds what it is asked to; rows are not beaten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.pools import DecodePool, PrefillPool, decode_pool, prefill_pool
from cluster.model.layout import LayoutTable
from cluster.model.rules import check_layouts
from rl_search.enumeration import expand, strategies
from rl_search.pareto import frontier
from rl_search.question import Question

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
DECODE_CHUNK = 512  # least tokens a step of a decode replica may hold: it computes no prompts


@dataclass(frozen=True, kw_only=True)
class Side:
    """Layouts of one kind of replica, and the degrees that say where they fit."""

    table: LayoutTable
    devices: Indices

    def take(self, rows: Indices) -> Side:
        """The rows at these indices."""
        return Side(table=self.table.take(rows), devices=self.devices[rows])


def prefill_side(question: Question) -> tuple[Side, PrefillPool]:
    """Prefill layouts that fit, hold a prompt within the TTFT bound, and are not beaten."""
    options = question.options
    table = _allowed(question, expand(_degrees(question), replace(options, batches=(1,))))
    fresh = max(question.workload.isl * (1.0 - question.workload.prefix_hit), 1.0)
    prompts = np.maximum(table.max_num_batched_tokens // fresh, 1).astype(np.int64)
    table = replace(table, max_num_seqs=2 * table.dp * prompts)
    pool = prefill_pool(
        question.model,
        question.group,
        table,
        question.workload,
        headroom=question.headroom,
        coefficients=question.coefficients,
        serving=question.serving,
    )
    ok = pool.fits
    if question.slo.ttft_s is not None:
        ok &= pool.host_s + pool.prefill_s < question.slo.ttft_s
    kept = _unbeaten(table, ok, fast=1.0 / pool.prefill_s, much=pool.requests_per_s)
    side = Side(table=table, devices=table.devices_per_replica)
    return side.take(kept), pool.take(kept)


def decode_side(question: Question) -> tuple[Side, DecodePool]:
    """Decode layouts that fit, hold their batch, keep the TPOT bound, and are not beaten."""
    options = question.options
    table = _allowed(question, expand(_degrees(question), replace(options, chunks=(DECODE_CHUNK,))))
    speculation = question.serving.speculation
    queries = 1 if speculation is None else 1 + speculation.drafts
    step = -(-table.max_num_seqs // table.dp) * queries
    table = replace(table, max_num_batched_tokens=np.maximum(step, DECODE_CHUNK))
    pool = decode_pool(
        question.model,
        question.group,
        table,
        question.workload,
        headroom=question.headroom,
        coefficients=question.coefficients,
        serving=question.serving,
    )
    ok = pool.fits & (pool.max_sequences >= table.max_num_seqs)
    ok &= pool.kv_capacity_tokens >= question.max_model_len * table.dp
    ok &= table.max_num_seqs >= table.dp * table.pp
    if question.slo.tpot_s is not None:
        ok &= pool.tpot_s <= question.slo.tpot_s
    kept = _unbeaten(table, ok, fast=1.0 / pool.tpot_s, much=pool.batch)
    side = Side(table=table, devices=table.devices_per_replica)
    return side.take(kept), pool.take(kept)


def _degrees(question: Question) -> LayoutTable:
    return strategies(question.model, question.group, question.options)


def _allowed(question: Question, table: LayoutTable) -> LayoutTable:
    report = check_layouts(
        question.model, question.group, table, cross_domain_tp=question.cross_domain_tp
    )
    return table.take(report.ok)


def _unbeaten(table: LayoutTable, ok: NDArray[np.bool_], *, fast: Floats, much: Floats) -> Indices:
    """Rows on the frontier of (fast, much) among those that are cut and hold KV alike."""
    keys = np.stack([table.tp, table.dp, table.pp], axis=1)
    kept: list[Indices] = []
    for key in np.unique(keys[ok], axis=0):
        rows = np.flatnonzero(ok & (keys == key).all(axis=1))
        kept.append(rows[frontier(fast[rows], much[rows])])
    return np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)


def packs(
    question: Question, plain: LayoutTable, held: LayoutTable, *, x: int, y: Floats, room: int
) -> NDArray[np.bool_]:
    """Whether both kinds' tensor-parallel groups fit into domains side by side, the large first."""
    domain = float(question.group.domain_devices)
    if question.cross_domain_tp or room <= domain:
        return np.ones(len(plain), dtype=bool)
    sizes = np.stack([plain.tp, held.tp]).astype(np.float64)
    counts = np.stack([x * plain.dp * plain.pp, y * held.dp * held.pp]).astype(np.float64)
    large = np.argmax(sizes, axis=0)
    rows = np.arange(sizes.shape[1])
    wide, narrow = sizes[large, rows], sizes[1 - large, rows]
    needed, others = counts[large, rows], counts[1 - large, rows]
    domains = np.floor(room / domain)
    each = np.floor(domain / wide)
    full = np.floor(needed / each)
    rest = needed - full * each
    left = full * np.floor((domain - each * wide) / narrow)
    left = left + np.where(rest > 0.0, np.floor((domain - rest * wide) / narrow), 0.0)
    free = domains - full - (rest > 0.0)
    return np.asarray((free >= 0.0) & (others <= left + free * np.floor(domain / narrow)))
