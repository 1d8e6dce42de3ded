"""Budgets per minute: what is granted never exceeds them, and waiting as told is enough."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from serving.rates import MINUTE_S, Bucket

LIMITS = st.floats(1, 1e6)
SHARES = st.floats(0, 1)
STEPS = st.lists(st.tuples(st.floats(0, 30), SHARES), max_size=50)


@given(limit=LIMITS, steps=STEPS)
def test_no_more_than_the_budget_is_granted(limit: float, steps: list[tuple[float, float]]) -> None:
    bucket, now_s, granted = Bucket(limit, now_s=0.0), 0.0, 0.0
    for pause_s, share in steps:
        now_s += pause_s
        amount = share * limit
        if bucket.wait_s(amount, now_s) == 0.0:
            bucket.take(amount, now_s)
            granted += amount
    assert granted <= limit * (1 + now_s / MINUTE_S) * (1 + 1e-9)


@given(limit=LIMITS, debt=st.floats(0, 5), share=SHARES)
def test_waiting_as_told_is_enough_and_not_too_much(
    limit: float, debt: float, share: float
) -> None:
    bucket = Bucket(limit, now_s=0.0)
    bucket.take(debt * limit, 0.0)
    amount = share * limit
    missing = amount - bucket.left(0.0)
    wait_s = bucket.wait_s(amount, 0.0)
    assert math.isclose(wait_s * limit / MINUTE_S, max(0.0, missing), abs_tol=1e-9 * limit)
    assert bucket.left(wait_s) >= amount - 1e-9 * limit


@given(limit=LIMITS, taken=SHARES, used=SHARES)
def test_what_is_given_back_was_taken(limit: float, taken: float, used: float) -> None:
    bucket = Bucket(limit, now_s=0.0)
    bucket.take(taken * limit, 0.0)
    bucket.take(-taken * used * limit, 0.0)
    assert math.isclose(bucket.left(0.0), limit * (1 - taken * (1 - used)), abs_tol=1e-6 * limit)
    bucket.take(-10 * limit, 0.0)
    assert bucket.left(0.0) == limit


def test_more_than_a_minutes_worth_never_fits() -> None:
    assert Bucket(100, now_s=0.0).wait_s(101, 0.0) == math.inf


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(60, now_s=100.0)
    bucket.take(60, 100.0)
    assert bucket.left(50.0) == 0
    assert bucket.left(101.0) == 1
