from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.control.workload import Served, WorkloadBook


def look(book: WorkloadBook, now_s: float, served: Served, *, gateway: str = "g") -> None:
    book.look({gateway: {"main": served}}, in_flight={"main": 6.0}, ready={"main": 2}, now_s=now_s)


def test_means_and_rates_are_those_of_what_was_served() -> None:
    book, served = WorkloadBook(half_life_s=600.0), Served()
    look(book, 0.0, served)
    for _ in range(100):
        served.arrived += 1
        served.ended(prompt=500, output=21)
        served.streamed(ttft_s=0.4, decode_s=1.0, tokens=21)
    served.arrived += 20  # refused
    look(book, 60.0, served)
    (seen,) = book.observations(["main", "light"], now_s=60.0)
    assert (seen.prompt_tokens, seen.output_tokens, seen.requests) == (500.0, 21.0, 100.0)
    assert seen.requests_per_s == pytest.approx(2.0)
    assert (seen.ttft_s, seen.tpot_s) == (pytest.approx(0.4), pytest.approx(0.05))
    assert seen.in_flight == pytest.approx(3.0)


def test_what_is_old_counts_half_after_its_half_life() -> None:
    book, served = WorkloadBook(half_life_s=60.0), Served()
    look(book, 0.0, served)
    served.ended(prompt=100, output=1)
    look(book, 1.0, served)
    served.ended(prompt=700, output=1)
    look(book, 61.0, served)
    (seen,) = book.observations(["main"], now_s=61.0)
    assert seen.prompt_tokens == pytest.approx((100 / 2 + 700) / 1.5)


def test_nothing_seen_is_unknown_and_not_zero() -> None:
    book = WorkloadBook(half_life_s=60.0)
    assert book.observations(["main"], now_s=0.0) == ()
    look(book, 0.0, Served())
    look(book, 10.0, Served())
    (seen,) = book.observations(["main"], now_s=10.0)
    assert (seen.requests, seen.requests_per_s) == (0.0, 0.0)
    assert math.isnan(seen.prompt_tokens)
    assert math.isnan(seen.tpot_s)


def test_a_gateway_that_was_restarted_counts_from_what_it_first_reports() -> None:
    book, before = WorkloadBook(half_life_s=1e9), Served()
    look(book, 0.0, before)
    before.ended(prompt=100, output=10)
    look(book, 1.0, before)
    look(book, 2.0, Served(finished=50.0, prompt_tokens=1e6), gateway="another")
    (seen,) = book.observations(["main"], now_s=2.0)
    assert (seen.requests, seen.prompt_tokens) == (pytest.approx(1.0), pytest.approx(100.0))


@given(st.lists(st.tuples(st.integers(1, 4000), st.booleans()), min_size=1, max_size=60))
def test_lost_reports_lose_nothing(ended: list[tuple[int, bool]]) -> None:
    some, every = WorkloadBook(half_life_s=1e12), WorkloadBook(half_life_s=1e12)
    served = Served()
    look(some, 0.0, served)
    look(every, 0.0, served)
    for second, (prompt, heard) in enumerate(ended, start=1):
        served.ended(prompt=prompt, output=1)
        look(every, float(second), served)
        if heard or second == len(ended):
            look(some, float(second), served)
    end_s = float(len(ended))
    (one,) = some.observations(["main"], now_s=end_s)
    (other,) = every.observations(["main"], now_s=end_s)
    assert one.requests == pytest.approx(other.requests)
    assert one.prompt_tokens == pytest.approx(other.prompt_tokens)
