"""What if prompts and tokens are made by different replicas? x prefill and y decode replicas, xPyD.

A prompt waits for one of the x replicas' ranks, is computed there, its KV cache travels, and from
the first token on a decode replica takes steps that hold no prompts:

    TTFT = host + wait + prefill + transfer,  TPOT = decode step / accepted,
    rate = min(x r_P u, y b / (transfer + (OSL - 1) TPOT), links).

Prompts arrive at random, c = x dp servers take s seconds each: with utilisation u a prompt waits
with probability u^(sqrt(2 (c + 1)) - 1), then exponentially, s/(2 c (1 - u)) on average (Sakasegawa
1977, of M/D/c). u is as high as the bound on TTFT allows, at most 0.95.

Transfer: every decode device fetches its share of the prompt's KV, all devices at once, over the
scale-up link inside a domain, else over its own NIC; it begins when the prompt is done (as in
vLLM's NIXL connector; Splitwise, arXiv:2311.18677, sends layers as they are made, which is not
modelled). The first token, made by the prefill replica, reaches the user after it.

Shapes: (n,), rows of both pools paired one by one. Invariants: rate <= both pools' capacity;
TTFT >= prefill + transfer; a faster link never lowers the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.distributions import LEVELS, Statistic
from cluster.costmodel.pools import DecodePool, PrefillPool

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
_BUSIEST = 0.95
_BISECTIONS = 30


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """xPyD, a row per pair, (n,) each. `ttft_s` and `tpot_s` are of the statistic asked for.

    `mean_tpot_s` is the mean.
    """

    requests_per_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    mean_tpot_s: Floats
    transfer_s: Floats
    utilisation: Floats  # of the prefill replicas
    decode_share: Floats  # of the decode replicas' capacity
    feasible: Flags


def transfer_s(prefill: PrefillPool, decode: DecodePool, *, local: Flags) -> Floats:
    """Seconds from the end of a prompt until its KV cache is where it is decoded, (n,).

    `local`: both replicas are in one scale-up domain. The end that moves more per device counts.
    """
    moved = _moved(prefill, decode)
    inside = moved / decode.link + decode.link_s
    across = moved / decode.network + decode.network_s
    return np.where(local, inside, across)


def pairs(
    prefill: PrefillPool,
    decode: DecodePool,
    *,
    x: Floats,
    y: Floats,
    local: Flags,
    most: Floats,
    statistic: Statistic = Statistic.MEAN,
) -> Pairs:
    """`x` prefill and `y` decode replicas at their highest rate.

    `most`: the highest utilisation of the prefill replicas, from `most_utilisation`.
    """
    moving = transfer_s(prefill, decode, local=local)
    fixed = prefill.host_s + prefill.prefill_s + moving
    capacity = x * prefill.requests_per_s
    served = y * decode.batch / (moving + decode.tokens * decode.tpot_s)
    bandwidth = np.where(local, decode.link, decode.network) / decode.prompt_bytes
    sending = x * prefill.servers * prefill.senders / decode.receivers
    carried = bandwidth * np.minimum(sending, y * decode.ranks)
    rate = np.minimum(np.minimum(capacity * most, served), carried)
    used = rate / capacity
    waited = _wait_s(prefill, x, used, statistic)
    level = LEVELS.get(statistic)
    z = 0.0 if level is None else NormalDist().inv_cdf(level)
    return Pairs(
        requests_per_s=rate,
        ttft_s=fixed + waited,
        tpot_s=decode.tpot_s * (1.0 + z * decode.tpot_spread),
        mean_tpot_s=decode.tpot_s,
        transfer_s=moving,
        utilisation=used,
        decode_share=rate / served,
        feasible=prefill.fits & decode.fits & (most > 0.0),
    )


def most_utilisation(
    prefill: PrefillPool,
    decode: DecodePool,
    *,
    x: Floats,
    local: Flags,
    ttft_s: float | None = None,
    statistic: Statistic = Statistic.MEAN,
) -> Floats:
    """The prefill replicas' highest utilisation that keeps TTFT within `ttft_s`, (n,); 0: none."""
    high = np.full_like(prefill.prefill_s, _BUSIEST)
    if ttft_s is None:
        return high
    fixed = prefill.host_s + prefill.prefill_s + transfer_s(prefill, decode, local=local)
    left_s = ttft_s - fixed
    low = np.zeros_like(high)
    enough = _wait_s(prefill, x, high, statistic) <= left_s
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        within = _wait_s(prefill, x, middle, statistic) <= left_s
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    return np.where(enough, _BUSIEST, np.where(left_s > 0.0, low, 0.0))


def _wait_s(prefill: PrefillPool, x: Floats, used: Floats, statistic: Statistic) -> Floats:
    """The wait before a prompt's prefill, its mean or a percentile, (n,)."""
    servers = x * prefill.servers
    service = prefill.servers / prefill.requests_per_s
    chance = np.maximum(used, 1e-12) ** (np.sqrt(2.0 * (servers + 1.0)) - 1.0)
    where_waited = service / (2.0 * servers * (1.0 - used))
    level = LEVELS.get(statistic)
    if level is None:
        return np.asarray(chance * where_waited)
    beyond = np.log(np.maximum(chance, 1e-300) / (1.0 - level))
    return np.asarray(where_waited * np.maximum(beyond, 0.0))


def _moved(prefill: PrefillPool, decode: DecodePool) -> Floats:
    """Bytes of a prompt's KV that the busiest device sends or receives, (n,)."""
    return np.asarray(decode.prompt_bytes * np.maximum(decode.receivers / prefill.senders, 1.0))
