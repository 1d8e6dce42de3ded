import pytest

from cluster.errors import UnknownNameError
from cluster.routers import ROUTERS
from cluster.routing import ReplicaView, RouteRequest, feasible
from cluster.sim.setup import GatewayRules
from cluster.sim.simulation import Simulation
from tests.sim.build import pool, request, setup


def view(name, *, tokens=0.0, requests=0):
    return ReplicaView(
        replica_id=name,
        in_flight_tokens=tokens,
        in_flight_requests=requests,
        max_requests=4,
        max_tokens=100.0,
    )


REPLICAS = [view("a", requests=4), view("b", tokens=50.0, requests=2), view("c", requests=1)]


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_chooses_one_that_may_take_it_or_none(name):
    choose = ROUTERS[name]()
    asked = RouteRequest(tokens=10.0)
    for tie in (0.0, 0.5, 0.99):
        chosen = choose(asked, REPLICAS, tie=tie)
        assert chosen is not None
        assert feasible(asked, chosen)
    assert choose(asked, REPLICAS[:1], tie=0.5) is None
    assert choose(RouteRequest(tokens=10.0, avoid=frozenset("bc")), REPLICAS, tie=0.5) is None


def test_turns_are_taken_by_name():
    choose = ROUTERS["round_robin"]()
    replicas = [view(name) for name in "abc"]
    chosen = [choose(RouteRequest(tokens=1.0), replicas, tie=0.0) for _ in range(4)]
    assert [one.replica_id for one in chosen] == ["a", "b", "c", "a"]


def test_fewest_requests_are_preferred():
    choose = ROUTERS["least_requests"]()
    assert choose(RouteRequest(tokens=1.0), REPLICAS, tie=0.0).replica_id == "c"


def test_an_unknown_router_is_named():
    with pytest.raises(UnknownNameError, match="round_robin"):
        GatewayRules(router="roundrobin")


def test_scoring_by_tokens_waits_less_than_turns_where_lengths_differ():
    # Every fourth request is long: turns give them all to one replica.
    workload = [
        request(0.02 * index, prompt=20, output=200 if index % 4 == 0 else 5)
        for index in range(400)
    ]
    waits = {}
    for name in ("scored", "round_robin"):
        made = setup(
            pool(4, max_requests=64, max_tokens=4000.0, max_num_seqs=8),
            rules=GatewayRules(router=name, batch_wait_s=0.0, reschedule_after_s=float("inf")),
        )
        waits[name] = Simulation(made).run(workload).record.ttft.quantile(0.99)
    assert waits["scored"] < waits["round_robin"]
