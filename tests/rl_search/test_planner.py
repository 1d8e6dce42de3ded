from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.errors import InfeasibleError, InputError
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.hardware import ClusterSpec
from cluster.model.plan import parse_plan
from cluster.model.rules import Severity, explain
from cluster.model.workload import Slo, Workload
from rl_search.checks import check_plan, group_of
from rl_search.enumeration import Space, SpaceOptions
from rl_search.exact import evaluate, ranked
from rl_search.planner import make_plan
from rl_search.question import Priority, Question
from rl_search.request import PlanRequest
from tests.costmodel import specs

CLUSTER = ClusterSpec(name="2x8xtest", groups=(specs.group(nodes=2),))


def request(**changes: object) -> PlanRequest:
    base = PlanRequest(
        model=specs.dense(),
        cluster=CLUSTER,
        workload=Workload(isl=2000, osl=500),
        slo=Slo(ttft_s=2.0, tpot_s=0.03),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def question(**changes: object) -> Question:
    base = Question(
        model=specs.moe(),
        group=specs.group(),
        workload=Workload(isl=2000, osl=500),
        slo=Slo(ttft_s=1.0, tpot_s=0.02),
        options=SpaceOptions(),
        headroom=0.2,
        max_model_len=2500,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_rejections_account_for_every_layout():
    found = evaluate(question())
    assert found.considered == int(found.ok.sum()) + sum(r.count for r in found.rejections)


@pytest.mark.parametrize("priority", list(Priority))
def test_a_pick_satisfies_everything_and_nothing_satisfying_is_better(priority):
    found = evaluate(question())
    pick = ranked(found, priority, top=1)[0]
    made = found.estimates
    assert made.ttft_s[pick] <= 1.0
    assert made.tpot_s[pick] <= 0.02
    assert made.running[pick] == found.table.max_num_seqs[pick]
    values = {
        Priority.THROUGHPUT: made.tokens_per_s_per_device,
        Priority.INTERACTIVE: made.tokens_per_s_per_user,
        Priority.BALANCED: made.tokens_per_s_per_device * made.tokens_per_s_per_user,
    }[priority]
    assert values[pick] == pytest.approx(values[found.ok].max())


def test_a_tighter_bound_never_gives_more_throughput():
    best = []
    for tpot_s in (0.05, 0.02, 0.012, 0.008):
        found = evaluate(question(slo=Slo(ttft_s=5.0, tpot_s=tpot_s)))
        index = ranked(found, Priority.THROUGHPUT, top=1)[0]
        best.append(float(found.estimates.tokens_per_s_per_device[index]))
    assert best == sorted(best, reverse=True)
    assert best[0] > best[-1]


def test_the_ranking_lists_each_strategy_once():
    found = evaluate(question())
    top = [found.table.row(i) for i in ranked(found, Priority.BALANCED, top=8)]
    keys = {(r.tp, r.dp, r.pp, r.moe_tp, r.moe_ep) for r in top}
    assert len(keys) == len(top) > 3


def test_a_plan_is_a_valid_file_whose_layout_breaks_no_rule():
    result = make_plan(request())
    plan = parse_plan(result.plan.dumps(), source="test")
    assert plan == result.plan
    main = plan.main
    layout = main.layout.to_layout(replicas=main.replicas.maximum)
    assert layout == result.rows[0].layout
    assert explain(specs.dense(), CLUSTER, layout) == ()
    assert main.expected is not None
    assert sum(main.expected.parts_s.values()) == pytest.approx(main.expected.tpot_s)
    assert main.engine_args["tensor_parallel_size"] == layout.tp
    assert check_plan(plan, {"main": specs.dense()}, CLUSTER) == []


def test_by_default_the_cluster_can_be_filled_and_starts_with_one():
    result = make_plan(request())
    bounds = result.plan.main.replicas
    assert (bounds.minimum, bounds.initial) == (1, 1)
    assert bounds.maximum == 16 // result.rows[0].layout.devices_per_replica


def test_a_rate_sets_the_initial_replicas():
    one = make_plan(request()).plan.main
    assert one.expected is not None
    rate = 2.5 * one.expected.goodput_rps
    many = make_plan(request(workload=Workload(isl=2000, osl=500, rate=rate))).plan.main
    assert many.replicas.initial == min(3, many.replicas.maximum)


def test_the_frontier_holds_the_extremes():
    result = make_plan(request())
    points = result.frontier
    for priority, values in (
        (Priority.THROUGHPUT, points.tokens_per_s_per_device),
        (Priority.INTERACTIVE, points.tokens_per_s_per_user),
    ):
        row = make_plan(request(priority=priority)).rows[0]
        named = {
            Priority.THROUGHPUT: row.estimates.tokens_per_s_per_device,
            Priority.INTERACTIVE: row.estimates.tokens_per_s_per_user,
        }[priority]
        assert values.max() == pytest.approx(float(named[row.index]))


def test_a_light_pool_leaves_room_for_itself():
    small = replace(specs.dense(layers=4), name="small")
    cluster = ClusterSpec(name="2", groups=(specs.group(devices_per_node=2),))
    result = make_plan(request(cluster=cluster, light=small, slo=Slo()))
    light = result.plan.light
    assert light is not None
    assert (light.replicas.minimum, light.replicas.initial, light.replicas.maximum) == (0, 0, 1)
    main = result.plan.main
    assert main.layout.tp * main.layout.pp * main.replicas.maximum == 1
    assert light.layout.tp == 1
    models = {"main": specs.dense(), "light": small}
    assert check_plan(result.plan, models, cluster) == []


def test_no_room_beside_the_light_pool_is_said():
    small = replace(specs.dense(layers=4), name="small")
    cluster = ClusterSpec(name="1", groups=(specs.group(devices_per_node=1),))
    with pytest.raises(InfeasibleError, match="light pool takes all 1"):
        make_plan(request(cluster=cluster, light=small))


def test_too_little_memory_names_the_need_and_the_limit():
    cluster = ClusterSpec(name="1", groups=(specs.group(devices_per_node=1),))
    with pytest.raises(InfeasibleError, match=r"needs \d+\.\d GiB per device.*limit.*64\.0 GiB"):
        make_plan(request(model=specs.dense(layers=200), cluster=cluster))


def test_a_bound_out_of_reach_names_the_nearest_value():
    with pytest.raises(InfeasibleError, match=r"TPOT \d+\.\d ms > 1 ms with TP"):
        make_plan(request(slo=Slo(tpot_s=0.001)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload": Workload(isl=40000, osl=500)}, "accepts at most 32768"),
        ({"max_model_len": 100}, "less than isl"),
        ({"max_model_len": 99999}, "more than toy-dense accepts"),
        ({"max_replicas": 999}, "lower --max-replicas"),
        ({"min_replicas": 5, "max_replicas": 2}, "minimum <= maximum"),
        ({"headroom": 1.5}, "headroom"),
        ({"workload": Workload(isl=9, osl=9, rate=float("inf"))}, "rate must be finite"),
        ({"workload": Workload(isl=9, osl=9, rate=float("nan"))}, "rate must be finite"),
        ({"workload": Workload(isl=9, osl=9, rate=0.0)}, "more than 0"),
        ({"served_name": ".."}, "--served-name"),
        ({"served_name": ""}, "empty"),
        ({"light": specs.dense()}, "pass another --light-name"),
        ({"light": specs.moe(), "light_name": "/x"}, "pass another --light-name"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        make_plan(request(**changes))


def test_deepseek_v3_on_four_nodes_is_planned_under_both_bounds():
    result = make_plan(
        PlanRequest(
            model=get_model("deepseek-v3"),
            cluster=parse_cluster("4x8xH200"),
            workload=Workload(isl=4000, osl=500),
            slo=Slo(ttft_s=2.0, tpot_s=0.05),
        )
    )
    expected = result.plan.main.expected
    assert expected is not None
    assert expected.ttft_s <= 2.0
    assert expected.tpot_s <= 0.05
    assert result.considered > 10_000
    rules = {entry.rule for entry in result.rejections}
    assert {"memory", "domain", "ttft", "tpot"} <= rules
    assert len(result.rows) == 10


def test_a_mixed_cluster_is_searched_group_by_group():
    cluster = parse_cluster("1x8xH100+1x8xH200")
    result = make_plan(
        request(cluster=cluster, priority=Priority.INTERACTIVE, slo=Slo(), model=specs.moe())
    )
    assert result.plan.cluster.device == "h200"
    assert {row.group.device.name for row in result.rows} == {"h100", "h200"}


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        ("8xL4+8xH200", Priority.BALANCED),
        ("8xL4+8xH200", Priority.THROUGHPUT),
        ("8xH200+8xL4", Priority.INTERACTIVE),
        ("8xH100+4x8xH100", Priority.BALANCED),
        ("2xL40S+8xH200+64xCPU", Priority.BALANCED),
    ],
)
def test_a_light_pool_is_planned_in_the_group_of_the_main_one(text, priority):
    models = {"main": get_model("llama-3.1-70b"), "light": get_model("llama-3.1-8b")}
    cluster = parse_cluster(text)
    result = make_plan(
        request(
            model=models["main"],
            light=models["light"],
            cluster=cluster,
            priority=priority,
            slo=Slo(),
        )
    )
    light = result.plan.light
    assert light is not None
    group = group_of(result.plan, cluster)
    assert group == result.rows[0].group
    pools = ((p.layout.to_layout(replicas=p.replicas.maximum)).devices for p in result.plan.pools)
    assert sum(pools) <= group.devices
    found = check_plan(result.plan, models, cluster)
    assert [f for f in found if f.severity is Severity.ERROR] == []


def test_the_light_layout_is_the_smallest_of_the_chosen_group():
    models = {"main": get_model("llama-3.1-70b"), "light": get_model("llama-3.1-70b")}
    # 131 GiB in bf16: many L4, or one B200.
    made = make_plan(
        request(
            model=models["main"],
            light=models["light"],
            light_name="light",
            cluster=parse_cluster("16xL4+8xB200"),
            slo=Slo(),
            priority=Priority.THROUGHPUT,
        )
    ).plan
    assert made.cluster.device == "b200"
    assert made.light is not None
    assert made.light.layout.tp * made.light.layout.pp == 1


def test_a_group_where_the_light_model_does_not_fit_is_no_candidate():
    big = get_model("llama-3.1-70b")
    small = get_model("llama-3.1-8b")
    cluster = parse_cluster("8xH200+1xL4")
    made = make_plan(request(model=small, light=big, cluster=cluster, slo=Slo()))
    assert {row.group.device.name for row in made.rows} == {"h200"}
    with pytest.raises(InfeasibleError, match=r"no layout of llama-3.1-70b fits.*larger cluster"):
        make_plan(request(model=small, light=big, cluster=parse_cluster("1xL4"), slo=Slo()))


@pytest.mark.parametrize("rate", [None, 1e-3, 1e300])
def test_a_pool_that_may_sleep_starts_awake(rate):
    workload = Workload(isl=2000, osl=500, rate=rate)
    bounds = make_plan(request(min_replicas=0, workload=workload)).plan.main.replicas
    assert bounds.minimum == 0
    assert bounds.initial == (bounds.maximum if rate == 1e300 else 1)


def test_a_space_beyond_memory_is_refused():
    with pytest.raises(InputError, match=r"10,000,000.*--max-dp N.*`vllm` space.*smaller cluster"):
        make_plan(
            request(
                model=get_model("deepseek-v3"),
                cluster=parse_cluster("3000x8xH200"),
                space=Space.ANY,
            )
        )
