from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster.costmodel.disaggregated import most_utilisation, pairs
from cluster.costmodel.distributions import Statistic
from cluster.costmodel.pools import decode_pool, prefill_pool
from cluster.errors import InputError
from cluster.model.hardware import ClusterSpec
from cluster.model.layout import Layout, LayoutTable
from cluster.model.rules import check_layouts
from cluster.model.workload import Slo, Workload
from rl_search.disaggregation import check_comparable, disaggregate, gain_over, question_of
from rl_search.enumeration import SpaceOptions, expand, strategies
from rl_search.planner import make_plan
from rl_search.pool_space import packs
from rl_search.question import Priority, Question
from rl_search.request import PlanRequest
from tests.costmodel import specs

OPTIONS = SpaceOptions(batches=(4, 16, 64), chunks=(512, 4096))


def question(**changes: object) -> Question:
    base = Question(
        model=specs.dense(),
        group=specs.group(nodes=1, devices_per_node=4),
        workload=Workload(isl=3000, osl=300),
        slo=Slo(ttft_s=1.0, tpot_s=0.03),
        options=OPTIONS,
        headroom=0.2,
        max_model_len=3300,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def best_by_trying_all(asked: Question, priority: Priority, *, local: bool) -> float:
    """The best score of every pair of layouts, x and y, one pair at a time."""
    room = asked.group.devices
    degrees = strategies(asked.model, asked.group, asked.options)
    degrees = degrees.take(check_layouts(asked.model, asked.group, degrees).ok)
    firsts = expand(degrees, replace(asked.options, batches=(1,)))
    seconds = expand(degrees, replace(asked.options, chunks=(512,)))
    best = -np.inf
    for i in range(len(firsts)):
        first = firsts.row(i)
        prompts = max(first.max_num_batched_tokens // asked.workload.isl, 1)
        first = replace(first, max_num_seqs=2 * first.dp * prompts)
        prefill = prefill_pool(
            asked.model, asked.group, LayoutTable.from_layouts([first]), asked.workload
        )
        for j in range(len(seconds)):
            second = seconds.row(j)
            decode = decode_pool(
                asked.model, asked.group, LayoutTable.from_layouts([second]), asked.workload
            )
            held = decode.max_sequences[0] >= second.max_num_seqs >= second.dp * second.pp
            if not held or decode.tpot_s[0] > asked.slo.tpot_s:
                continue
            for x in range(1, room + 1):
                spare = room - x * first.devices_per_replica
                for y in range(1, max(spare // second.devices_per_replica, 0) + 1):
                    inside, count = np.array([local]), np.array([float(x)])
                    most = most_utilisation(
                        prefill, decode, x=count, local=inside, ttft_s=asked.slo.ttft_s
                    )
                    made = pairs(
                        prefill, decode, x=count, y=np.array([float(y)]), local=inside, most=most
                    )
                    if not made.feasible[0] or made.ttft_s[0] > asked.slo.ttft_s * (1 + 1e-9):
                        continue
                    tokens = float(made.requests_per_s[0]) * asked.workload.osl
                    user = 1.0 / float(made.mean_tpot_s[0])
                    scores = {
                        Priority.THROUGHPUT: tokens,
                        Priority.INTERACTIVE: user,
                        Priority.BALANCED: tokens * user,
                    }
                    best = max(best, scores[priority])
    return best


@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize("local", [True, False])
def test_the_answer_is_that_of_trying_every_pair(priority, local):
    group = specs.group(nodes=1, devices_per_node=4)
    if not local:  # domains of one device: every cache crosses the network
        group = specs.group(nodes=4, devices_per_node=1)
    asked = question(group=group, slo=Slo(ttft_s=0.6, tpot_s=0.03))
    found = disaggregate(asked, priority)
    assert found is not None
    assert found.local is local
    score = {
        Priority.THROUGHPUT: found.tokens_per_s,
        Priority.INTERACTIVE: found.tokens_per_s_per_user,
        Priority.BALANCED: found.tokens_per_s * found.tokens_per_s_per_user,
    }[priority]
    assert score == pytest.approx(best_by_trying_all(asked, priority, local=local), rel=1e-6)


@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize("statistic", list(Statistic))
def test_bounds_are_kept_on_the_devices_there_are(priority, statistic):
    asked = question(
        group=specs.group(nodes=2), statistic=statistic, slo=Slo(ttft_s=0.8, tpot_s=0.02)
    )
    found = disaggregate(asked, priority)
    assert found is not None
    assert found.devices <= 16
    assert found.ttft_s <= 0.8 * (1 + 1e-6)
    assert found.tpot_s <= 0.02 * (1 + 1e-6)
    assert found.tokens_per_s == pytest.approx(found.requests_per_s * 300)
    assert 0.0 < found.utilisation <= 0.95 + 1e-9
    both = (found.prefill, found.decode)
    for layout in both:
        assert layout.tp * layout.dp == layout.moe_tp * layout.moe_ep
    for layout, letter in zip(both, "PD", strict=True):
        assert f"{layout.replicas}{letter} of TP{layout.tp}" in found.describe()


def test_a_tighter_bound_never_gives_more_throughput():
    values = []
    for ttft_s in (5.0, 0.15, 0.12, 0.1):
        found = disaggregate(question(slo=Slo(ttft_s=ttft_s, tpot_s=0.03)), Priority.THROUGHPUT)
        assert found is not None
        values.append(found.tokens_per_s)
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]


@pytest.mark.parametrize("slo", [Slo(ttft_s=1e-3), Slo(tpot_s=1e-5)])
def test_no_answer_is_an_answer(slo):
    assert disaggregate(question(slo=slo), Priority.BALANCED) is None
    assert disaggregate(question(group=specs.group(devices_per_node=1)), Priority.BALANCED) is None


def test_units_are_repeated_in_every_domain():
    one = disaggregate(question(), Priority.THROUGHPUT)
    many = disaggregate(
        question(group=specs.group(nodes=6, devices_per_node=4)), Priority.THROUGHPUT
    )
    assert one is not None
    assert many is not None
    assert many.devices <= 24
    assert many.tokens_per_s >= 6 * one.tokens_per_s * (1 - 1e-6)


def test_groups_of_tensor_parallelism_stay_in_their_domains():
    asked = question(group=specs.group(nodes=2, devices_per_node=8))
    wide, narrow = (LayoutTable.from_layouts([Layout(tp=tp, moe_tp=tp)]) for tp in (6, 2))
    ones = np.array([1.0])
    # Two groups of 6 leave 2 devices in each of the two domains.
    assert packs(asked, wide, narrow, x=2, y=2 * ones, room=16)[0]
    assert not packs(asked, wide, narrow, x=2, y=3 * ones, room=16)[0]
    assert not packs(asked, wide, narrow, x=3, y=ones, room=16)[0]
    assert packs(asked, narrow, wide, x=2, y=2 * ones, room=16)[0]


def request(**changes: object) -> PlanRequest:
    base = PlanRequest(
        model=specs.dense(),
        cluster=ClusterSpec(name="1x8xtest", groups=(specs.group(),)),
        workload=Workload(isl=4000, osl=300),
        slo=Slo(ttft_s=2.0, tpot_s=0.02),
        priority=Priority.THROUGHPUT,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_gain_is_over_the_plan_s_layout_on_the_same_devices():
    asked = request()
    result = make_plan(asked)
    gain = gain_over(asked, result)
    row = result.rows[0]
    rate = float(row.estimates.requests_per_s[row.index]) * row.layout.replicas
    assert gain.aggregated_tokens_per_s == pytest.approx(rate * 300)
    assert gain.found is not None
    assert gain.throughput == pytest.approx(gain.found.tokens_per_s / (rate * 300))
    assert gain.found.devices <= 8
    assert question_of(asked, row.group).slo == asked.slo


def test_without_an_xpyd_there_is_no_gain():
    asked = request(cluster=ClusterSpec(name="1x1xtest", groups=(specs.group(devices_per_node=1),)))
    gain = gain_over(asked, make_plan(asked))
    assert gain.found is None
    assert np.isnan(gain.throughput)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"light": specs.dense(layers=4)}, "--light"),
        ({"cluster": ClusterSpec(name="c", groups=(specs.group(kind="cpu"),))}, "CPU"),
    ],
)
def test_what_cannot_be_compared_is_said_before_the_search(changes, message):
    with pytest.raises(InputError, match=message):
        check_comparable(request(**changes))
