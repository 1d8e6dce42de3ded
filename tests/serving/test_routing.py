from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.routing import (
    STALE_AFTER_S,
    EngineReport,
    ReplicaView,
    RouteRequest,
    feasible,
    pick,
    predicted_tokens,
    score,
)

REPORTS = st.none() | st.builds(
    EngineReport,
    age_s=st.floats(0, 100),
    running=st.integers(0, 300),
    waiting=st.integers(0, 300),
    kv_usage=st.floats(0, 1),
)


@st.composite
def views(draw: st.DrawFn) -> list[ReplicaView]:
    return [
        ReplicaView(
            replica_id=f"r{index}",
            in_flight_tokens=draw(st.floats(0, 2000)),
            in_flight_requests=draw(st.integers(0, 4)),
            max_requests=draw(st.integers(1, 4)),
            max_tokens=draw(st.floats(1, 2000)),
            report=draw(REPORTS),
        )
        for index in range(draw(st.integers(0, 5)))
    ]


REQUESTS = st.builds(
    RouteRequest,
    tokens=st.floats(0, 3000),
    avoid=st.frozensets(st.sampled_from(["r0", "r1", "r2", "gone"])),
)
TIES = st.floats(0, 1, exclude_max=True)


@settings(deadline=None)
@given(request=REQUESTS, replicas=views(), tie=TIES)
def test_what_must_be_avoided_or_is_full_is_never_picked(
    request: RouteRequest, replicas: list[ReplicaView], tie: float
) -> None:
    chosen = pick(request, replicas, tie=tie)
    if chosen is None:
        assert not any(feasible(request, replica) for replica in replicas)
        return
    assert chosen.replica_id not in request.avoid
    idle = chosen.in_flight_requests == 0
    fits = chosen.in_flight_tokens + request.tokens <= chosen.max_tokens
    assert idle or (chosen.in_flight_requests < chosen.max_requests and fits)


@settings(deadline=None)
@given(request=REQUESTS, replicas=views(), tie=TIES)
def test_no_other_replica_that_could_take_it_scores_better(
    request: RouteRequest, replicas: list[ReplicaView], tie: float
) -> None:
    chosen = pick(request, replicas, tie=tie)
    for replica in replicas if chosen else ():
        assert 0 <= score(request, replica) <= 1
        if feasible(request, replica):
            assert score(request, chosen) >= score(request, replica) - 1e-6


@settings(deadline=None)
@given(prompt=st.integers(0, 10**6), output=st.integers(0, 10**6), more=st.integers(0, 10**6))
def test_predicted_tokens_are_not_negative_and_grow(prompt: int, output: int, more: int) -> None:
    tokens = predicted_tokens(prompt_tokens=prompt, output_tokens=output)
    assert tokens >= 0
    assert predicted_tokens(prompt_tokens=prompt + more, output_tokens=output) >= tokens
    assert predicted_tokens(prompt_tokens=prompt, output_tokens=output + more) >= tokens


def view(
    name: str, *, tokens: float = 0.0, requests: int = 0, report: EngineReport | None = None
) -> ReplicaView:
    return ReplicaView(
        replica_id=name,
        in_flight_tokens=tokens,
        in_flight_requests=requests,
        max_requests=8,
        max_tokens=1000,
        report=report,
    )


def test_the_replica_with_fewer_predicted_tokens_wins_not_the_one_with_fewer_requests() -> None:
    busy = view("one-long", tokens=900, requests=1)
    light = view("three-short", tokens=90, requests=3)
    chosen = pick(RouteRequest(tokens=50), [busy, light], tie=0.0)
    assert chosen is light


def test_equals_are_split_by_the_tie() -> None:
    equals = [view("a"), view("b")]
    picked = {pick(RouteRequest(tokens=1), equals, tie=tie).replica_id for tie in (0.0, 0.9)}
    assert picked == {"a", "b"}


def test_a_stale_report_is_neither_idle_nor_full() -> None:
    stale = EngineReport(age_s=STALE_AFTER_S + 1, running=9, waiting=9, kv_usage=1.0)
    free = EngineReport(age_s=0, running=0, waiting=0, kv_usage=0.1)
    full = EngineReport(age_s=0, running=9, waiting=9, kv_usage=0.9)
    request = RouteRequest(tokens=1)
    scores = [score(request, view("x", report=r)) for r in (full, stale, free)]
    assert scores == sorted(scores)
    assert score(request, view("x", report=stale)) == score(request, view("x"))


def test_a_request_larger_than_any_replica_goes_to_an_idle_one() -> None:
    request = RouteRequest(tokens=5000)
    assert pick(request, [view("a", tokens=1, requests=1)], tie=0.0) is None
    assert pick(request, [view("b")], tie=0.0) is not None
