import math
from dataclasses import replace

import pytest

from serving.control.observe import FORGET_AFTER_S, Heard, Moving, in_public, snapshot
from serving.control.scaler import DeploymentState, ServeReplica
from serving.keeper.account import Kept, ReplicaUse
from serving.messages import GatewayReport, Owed, PoolLoad
from tests.serving.fakes import report


def state(name: str, *, target: int, running: int, starting: int) -> DeploymentState:
    return DeploymentState(
        name=name, status="", target=target, running=running, starting=starting, message=""
    )


def gateway(name: str, *, sent_s: float, scale: float = 1.0) -> GatewayReport:
    load = PoolLoad(
        pool="main",
        arrival_tokens_per_s=10 * scale,
        in_flight_tokens=20 * scale,
        queued_tokens=30 * scale,
        queued_requests=int(4 * scale),
        oldest_wait_s=5 * scale,
        arrival_work=0.1 * scale,
        in_flight_work=0.2 * scale,
        queued_work=0.3 * scale,
    )
    return GatewayReport(
        gateway_id=name, address="h:1", sent_s=sent_s, loads=(load,), in_flight={}, charged={}
    )


def test_nothing_heard_is_nothing_known_and_not_idle() -> None:
    seen = snapshot(Heard(), pools=["main"], now_s=100)
    assert (seen.now_s, seen.pools, seen.loads) == (100, (), ())


def test_gateways_are_summed_at_the_age_of_the_oldest() -> None:
    heard = Heard()
    heard.gateways = {"a": gateway("a", sent_s=98), "b": gateway("b", sent_s=99, scale=2)}
    (load,) = snapshot(heard, pools=["main", "light"], now_s=100).loads
    assert (load.pool, load.observed_s) == ("main", 98)
    assert (load.arrival_tokens_per_s, load.in_flight_tokens, load.queued_tokens) == (30, 60, 90)
    assert (load.queued_requests, load.oldest_wait_s) == (12, 10)
    work = (load.arrival_work, load.in_flight_work, load.queued_work)
    assert work == pytest.approx((0.3, 0.6, 0.9))


def test_pools_carry_serves_numbers_and_their_own_replicas() -> None:
    heard = Heard(
        deployments={"main": state("main", target=3, running=1, starting=1)}, deployments_s=99
    )
    heard.replicas = {
        "a": report("a", sent_s=98, kv_usage=0.5),
        "x": report("x", sent_s=98, pool="light"),
    }
    (pool,) = snapshot(heard, pools=["main", "light"], now_s=100).pools
    assert (pool.observed_s, pool.target, pool.ready, pool.pending) == (99, 3, 1, 2)
    assert [(r.replica_id, r.observed_s, r.kv_usage) for r in pool.replicas] == [("a", 98, 0.5)]


def test_replicas_that_start_beyond_the_target_are_pending_too() -> None:
    heard = Heard(deployments={"main": state("main", target=1, running=1, starting=1)})
    assert snapshot(heard, pools=["main"], now_s=100).pools[0].pending == 1


def test_the_silent_are_forgotten() -> None:
    heard = Heard()
    heard.replicas = {"old": report("old", sent_s=0), "new": report("new", sent_s=1)}
    heard.gateways = {"old": gateway("old", sent_s=0), "new": gateway("new", sent_s=1)}
    heard.forget(FORGET_AFTER_S + 0.5)
    assert (set(heard.replicas), set(heard.gateways)) == ({"new"}, {"new"})


def routed(*ids: str) -> DeploymentState:
    return DeploymentState(
        name="main",
        status="",
        target=len(ids),
        running=len(ids),
        starting=0,
        message="",
        answering=frozenset(ids),
    )


def test_a_replica_that_is_being_stopped_is_not_offered_although_it_reports() -> None:
    heard = Heard(deployments={"main": routed("a")}, deployments_s=100)
    heard.replicas = {"a": report("a", sent_s=99), "victim": report("victim", sent_s=99)}
    assert [r.replica_id for r in heard.answering(100) or ()] == ["a"]


def test_replicas_that_answer_unheard_are_unknown_and_not_gone() -> None:
    heard = Heard(deployments={"main": routed("a")}, deployments_s=100)
    assert heard.answering(100) is None
    assert Heard(deployments={"main": routed()}, deployments_s=100).answering(100) == ()


def test_while_serve_is_silent_all_that_report_are_offered() -> None:
    heard = Heard(deployments={"main": routed("a")}, deployments_s=100)
    heard.replicas = {"b": report("b", sent_s=150)}
    assert [r.replica_id for r in heard.answering(150) or ()] == ["b"]


def test_no_key_is_told_in_public() -> None:
    told = replace(gateway("g", sent_s=1), in_flight={"a": (2, 9.0), "b": (1, 3.0)})
    told = replace(told, charged={"team": (3.0, 500.0)})
    assert in_public(told) == {"id": "g", "address": "h:1", "requests": 3}


def test_a_replica_that_was_given_up_is_not_offered_although_serve_routes_to_it() -> None:
    heard = Heard(deployments={"main": routed("a", "b")}, deployments_s=100, lost={"a": 99})
    heard.replicas = {"a": report("a", sent_s=99), "b": report("b", sent_s=99)}
    assert [r.replica_id for r in heard.answering(100) or ()] == ["b"]
    assert [r.replica_id for r in heard.answering(200) or ()] == ["b"], "nor while Serve is silent"


def test_when_the_only_replica_was_given_up_there_is_none() -> None:
    heard = Heard(deployments={"main": routed("a")}, deployments_s=100, lost={"a": 99})
    heard.replicas = {"a": report("a", sent_s=99)}
    assert heard.answering(100) == ()


def serves(*ids: str) -> DeploymentState:
    replicas = tuple(ServeReplica(replica_id=name, state="RUNNING") for name in ids)
    return replace(state("main", target=1, running=1, starting=0), replicas=replicas)


def test_who_lives_is_known_from_fresh_books_that_are_not_empty() -> None:
    assert Heard(deployments={"main": serves("a")}, deployments_s=99).living(100) == {"a"}
    assert Heard(deployments={"main": serves("a")}, deployments_s=0).living(100) is None
    assert Heard(deployments={}, deployments_s=99).living(100) is None


def test_a_replica_carries_what_keepers_and_gateways_know_of_it() -> None:
    heard = Heard(deployments={"main": serves("a")}, deployments_s=99)
    heard.replicas = {"a": report("a", sent_s=98), "b": report("b", sent_s=98)}
    heard.kept = Kept(
        uses={"a": ReplicaUse(host_bytes=5.0, device_bytes=6.0, device_fault="GPU 0: lost")},
        unmet={"main": "no room"},
    )
    busy = {"a": (2, 9.0)}
    heard.gateways = {n: replace(gateway(n, sent_s=98), in_flight=busy) for n in ("g", "h")}
    (pool,) = snapshot(heard, pools=["main"], now_s=100).pools
    a, b = pool.replicas
    assert (a.host_bytes, a.device_bytes, a.device_fault, a.in_flight) == (5, 6, "GPU 0: lost", 4)
    assert (math.isnan(b.host_bytes), b.device_fault, b.in_flight) == (True, "", 0)
    assert pool.unmet == "no room"


def test_of_a_layout_that_takes_over_gateways_hear_of_what_has_answered() -> None:
    heard = Heard(deployments_s=100.0)
    old = replace(state("main", target=1, running=1, starting=0), answering=frozenset({"old"}))
    heard.deployments = {"main": old}
    heard.replicas = {
        name: replace(report(name, sent_s=100.0), generation=generation)
        for name, generation in (("old", 1), ("proven", 2), ("silent", 2))
    }
    heard.moving = {
        "main": Moving(number=2, answering=frozenset({"proven"}), worth=2, why="it moves")
    }
    for serve_is_heard_s in (1.0, 100.0):
        heard.deployments_s = serve_is_heard_s
        told = heard.answering(100.0)
        assert told is not None
        assert {each.replica_id for each in told} == {"old", "proven"}
    (pool,) = snapshot(heard, pools=["main"], now_s=100.0).pools
    assert (pool.ready, pool.target, pool.moving) == (3, 3, "it moves")


def test_a_replica_of_a_layout_that_has_yet_to_take_over_is_in_serves_books() -> None:
    heard = Heard(deployments_s=100.0, books=frozenset({"old", "new"}))
    assert heard.living(100.0) is None, "Serve that has lost its controller"
    old = ServeReplica(replica_id="old", state="RUNNING")
    heard.deployments = {
        "main": replace(state("main", target=1, running=1, starting=0), replicas=(old,))
    }
    assert heard.living(100.0) == {"old", "new"}
    assert heard.living(200.0) is None


def owing(name: str, **owed: tuple[float, float]) -> GatewayReport:
    told = {replica: Owed(owed_s=o, silent_s=s) for replica, (o, s) in owed.items()}
    return replace(gateway(name, sent_s=99), owed=told)


def test_a_replica_owes_as_long_as_any_gateway_waits_unless_it_answers_another() -> None:
    heard = Heard(
        gateways={
            "g": owing("g", dead=(12, 12), cut=(12, 12), idle=(0, 50)),
            "h": owing("h", dead=(3, 20), cut=(0, 2), idle=(0, math.inf)),
        }
    )
    assert [heard.owed_s(name) for name in ("dead", "cut", "idle", "unknown")] == [12, 2, 0, 0]


def test_a_replica_that_serve_routes_to_stays_in_sight_when_it_falls_silent() -> None:
    heard = Heard(deployments={"main": routed("a", "b", "new")}, deployments_s=110)
    heard.replicas = {"a": report("a", sent_s=100), "b": report("b", sent_s=109)}
    heard.replicas["gone"] = report("gone", sent_s=100)
    heard.forget(110)
    (pool,) = snapshot(heard, pools=["main"], now_s=110).pools
    seen = {replica.replica_id: replica.observed_s for replica in pool.replicas}
    assert math.isnan(seen.pop("new")), "it has never reported"
    assert seen == {"a": 100, "b": 109}
    assert [r.replica_id for r in heard.answering(110) or ()] == ["b"]
    assert [r.replica_id for r in heard.unheard()] == ["a"]


def test_starts_are_told_apart_and_since_when() -> None:
    starting = ServeReplica(replica_id="s", state="STARTING", since_s=42)
    state = replace(routed("a"), target=2, starting=1, replicas=(starting,))
    heard = Heard(deployments={"main": state}, start_failures={"main": "no memory"})
    (pool,) = snapshot(heard, pools=["main"], now_s=100).pools
    assert [(s.replica_id, s.since_s) for s in pool.starting] == [("s", 42)]
    assert pool.start_failure == "no memory"
