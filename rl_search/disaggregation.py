"""Would separate prefill and decode replicas do better on the same devices? Every xPyD, looked at.

A unit is x prefill replicas of one layout and y decode replicas of another. It lies in one scale-up
domain, where KV caches travel over the fast link, and is repeated in every domain, or it spreads
over the group and they travel over the network. For a given pair of layouts and x the rate rises
with y until the prefill replicas are the limit, so of all y only the two next to that point and the
largest that fits have to be tried.

Invariants: a unit's copies fit the group; the answer keeps the bounds that layouts keep; no pair
has a higher score where the group has at most MAX_REPLICAS devices (of larger groups, units of at
most as many prefill replicas are repeated).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.disaggregated import Pairs, most_utilisation, pairs
from cluster.costmodel.pools import DecodePool, PrefillPool
from cluster.errors import InputError
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout
from rl_search.enumeration import options_for
from rl_search.planner import PlanResult
from rl_search.pool_space import Side, decode_side, packs, prefill_side
from rl_search.question import Priority, Question
from rl_search.request import PlanRequest, context_of

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
MAX_REPLICAS = 64  # prefill replicas of one unit
_BLOCK = 200_000  # pairs evaluated at once


@dataclass(frozen=True, kw_only=True)
class Disaggregated:
    """The best xPyD on a group: layouts with their replicas per unit, and what `copies` units give.

    Seconds, tokens/s. `ttft_s` and `tpot_s` are of the question's statistic. `local`: a unit lies
    in one scale-up domain. `limit` names what bounds the rate.
    """

    prefill: Layout
    decode: Layout
    copies: int
    local: bool
    ttft_s: float
    tpot_s: float
    transfer_s: float
    requests_per_s: float
    tokens_per_s: float
    tokens_per_s_per_user: float
    utilisation: float
    limit: str
    considered: int

    @property
    def devices(self) -> int:
        """Devices of all units."""
        return self.copies * (self.prefill.devices + self.decode.devices)

    def describe(self) -> str:
        """Short name, e.g. `2 x (3P of TP1 + 1D of TP4)`."""
        halves = []
        for letter, layout in (("P", self.prefill), ("D", self.decode)):
            name = replace(layout, replicas=1).describe().removesuffix(" x1")
            halves.append(f"{layout.replicas}{letter} of {name}")
        return f"{self.copies} x ({' + '.join(halves)})"


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The best xPyD beside the chosen layout, on all devices of that layout's group.

    `found` is None where no xPyD keeps the bounds. Ratios are xPyD over the layout's replicas.
    """

    found: Disaggregated | None
    group: NodeGroup
    aggregated_tokens_per_s: float
    throughput: float = math.nan
    interactivity: float = math.nan


def check_comparable(request: PlanRequest) -> None:
    """Raise InputError for what xPyD cannot be compared with: CPU cores, a light pool."""
    if any(group.device.kind == "cpu" for group in request.cluster.groups):
        raise InputError(
            "--disaggregate compares replicas that hold their devices; CPU ranks share their "
            "cores. Fix: leave it out, or name a cluster of GPUs."
        )
    if request.light is not None:
        raise InputError(
            "--disaggregate needs all devices for one model. Fix: leave out --light or it."
        )


def gain_over(request: PlanRequest, result: PlanResult) -> Gain:
    """The best xPyD for a planned request against the plan's main pool at its maximum.

    Raises InputError as `check_comparable` does.
    """
    check_comparable(request)
    row = result.rows[0]
    replicas = row.layout.replicas
    aggregated = float(row.estimates.requests_per_s[row.index]) * replicas * request.workload.osl
    found = disaggregate(question_of(request, row.group), request.priority)
    if found is None:
        return Gain(found=None, group=row.group, aggregated_tokens_per_s=aggregated)
    return Gain(
        found=found,
        group=row.group,
        aggregated_tokens_per_s=aggregated,
        throughput=found.tokens_per_s / aggregated,
        interactivity=found.tokens_per_s_per_user
        / float(row.estimates.tokens_per_s_per_user[row.index]),
    )


def question_of(request: PlanRequest, group: NodeGroup) -> Question:
    """What is asked of a group, as the search of layouts asks it."""
    return Question(
        model=request.model,
        group=group,
        workload=request.workload,
        slo=request.slo,
        options=options_for(
            group, space=request.space, max_devices=group.devices, max_dp=request.max_dp
        ),
        headroom=request.headroom,
        max_model_len=min(context_of(request), request.model.max_context),
        cross_domain_tp=request.cross_domain_tp,
        coefficients=request.coefficients,
        serving=request.serving,
        statistic=request.statistic,
    )


_Found = tuple[tuple[float, float, float], Disaggregated]


def disaggregate(question: Question, priority: Priority) -> Disaggregated | None:
    """The best xPyD on the question's group within its bounds, None where none keeps them."""
    plain, prefill = prefill_side(question)
    held, decode = decode_side(question)
    best: _Found | None = None
    considered = 0
    if not len(plain.table) or not len(held.table):
        return None
    left, right = (
        x.ravel()
        for x in np.meshgrid(np.arange(len(plain.table)), np.arange(len(held.table)), indexing="ij")
    )
    group = question.group
    spaces = [(True, group.domain_devices)]
    if group.devices > group.domain_devices:
        spaces.append((False, group.devices))
    for local, room in spaces:
        for x in range(1, min(room, MAX_REPLICAS) + 1):
            spare = room - x * plain.devices[left] - held.devices[right]
            fitting = np.flatnonzero(spare >= 0)
            if not len(fitting):
                break
            for start in range(0, len(fitting), _BLOCK):
                chosen = fitting[start : start + _BLOCK]
                found, count = _best(
                    question,
                    priority,
                    (plain, prefill, left[chosen]),
                    (held, decode, right[chosen]),
                    x=x,
                    room=room,
                    local=local,
                )
                considered += count
                if found is not None and (best is None or found[0] > best[0]):
                    best = found
    return None if best is None else replace(best[1], considered=considered)


def _best(
    question: Question,
    priority: Priority,
    first: tuple[Side, PrefillPool, Indices],
    second: tuple[Side, DecodePool, Indices],
    *,
    x: int,
    room: int,
    local: bool,
) -> tuple[_Found | None, int]:
    """The best of these pairs with `x` prefill replicas, and how many were looked at."""
    plain, held = first[0].take(first[2]), second[0].take(second[2])
    prefill, decode = first[1].take(first[2]), second[1].take(second[2])
    count = np.full(len(plain.devices), float(x))
    inside = np.full(len(count), local)
    most = (room - x * plain.devices) // held.devices

    within = most_utilisation(
        prefill,
        decode,
        x=count,
        local=inside,
        ttft_s=question.slo.ttft_s,
        statistic=question.statistic,
    )

    def made(y: Floats) -> Pairs:
        return pairs(
            prefill,
            decode,
            x=count,
            y=y,
            local=inside,
            most=within,
            statistic=question.statistic,
        )

    whole = made(most.astype(np.float64))
    # decode_share of the largest y says how many of them the rest can feed.
    needed = whole.decode_share * most
    best: _Found | None = None
    for tried in (np.floor(needed), np.ceil(needed - 1e-9), most.astype(np.float64)):
        y = np.clip(tried, 1.0, most)
        result = made(y)
        units = x * plain.devices + y * held.devices
        copies = np.floor(room / units) * (question.group.devices // room)
        ok = result.feasible & _within_bounds(question, result)
        ok &= packs(question, plain.table, held.table, x=x, y=y, room=room)
        if not ok.any():
            continue
        tokens = result.requests_per_s * copies * question.workload.osl
        # Ties go to more tokens/s, then to fewer devices.
        scores = np.round(np.log(_score(tokens, 1.0 / result.mean_tpot_s, priority)), 9)
        rows = np.flatnonzero(ok)
        order = np.lexsort((-(copies * units)[rows], tokens[rows], scores[rows]))
        index = int(rows[order[-1]])
        key = (float(scores[index]), float(tokens[index]), -float((copies * units)[index]))
        if best is None or key > best[0]:
            layouts = (
                replace(plain.table.row(index), replicas=x),
                replace(held.table.row(index), replicas=int(y[index])),
            )
            answer = _answer(
                question, result, index, layouts=layouts, copies=int(copies[index]), local=local
            )
            best = (key, answer)
    return best, 3 * len(count)


def _within_bounds(question: Question, result: Pairs) -> NDArray[np.bool_]:
    ok = result.requests_per_s > 0.0
    for seconds, bound in (
        (result.ttft_s, question.slo.ttft_s),
        (result.tpot_s, question.slo.tpot_s),
    ):
        if bound is not None:
            ok &= seconds <= bound * (1.0 + 1e-9)
    return ok


def _answer(
    question: Question,
    result: Pairs,
    index: int,
    *,
    layouts: tuple[Layout, Layout],
    copies: int,
    local: bool,
) -> Disaggregated:
    rate = float(result.requests_per_s[index]) * copies
    full = float(result.decode_share[index]) > 1.0 - 1e-6
    return Disaggregated(
        prefill=layouts[0],
        decode=layouts[1],
        copies=copies,
        local=local,
        ttft_s=float(result.ttft_s[index]),
        tpot_s=float(result.tpot_s[index]),
        transfer_s=float(result.transfer_s[index]),
        requests_per_s=rate,
        tokens_per_s=rate * question.workload.osl,
        tokens_per_s_per_user=1.0 / float(result.mean_tpot_s[index]),
        utilisation=float(result.utilisation[index]),
        limit="decode" if full else "prefill",
        considered=0,
    )


def _score(tokens_per_s: Floats, per_user: Floats, priority: Priority) -> Floats:
    """As the ranking of layouts scores them; the devices are the same, so totals compare."""
    if priority is Priority.THROUGHPUT:
        return tokens_per_s
    if priority is Priority.INTERACTIVE:
        return per_user
    return tokens_per_s * per_user
