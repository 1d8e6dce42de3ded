"""What counts as answered within the SLO."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.model.workload import Slo
from serving.slo import Ended, met

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def ended(**changes: Any) -> Ended:
    """A stream of 11 tokens, by default just within both bounds."""
    values: dict[str, Any] = {
        "pool": "main",
        "status": 200,
        "finish": "completed",
        "stream": True,
        "ttft_s": 1.0,
        "duration_s": 2.0,
        "output_tokens": 11,
    }
    return Ended(**values | changes)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, True),
        ({"ttft_s": 1.01, "duration_s": 1.5}, False),
        ({"duration_s": 2.01}, False),
        ({"output_tokens": None, "duration_s": 60.0}, True),
        ({"output_tokens": 1, "duration_s": 60.0}, True),
        ({"stream": False, "ttft_s": 2.0}, True),
        ({"stream": False, "ttft_s": 2.01, "duration_s": 2.01}, False),
        ({"stream": False, "output_tokens": None, "duration_s": 60.0}, True),
        ({"finish": "error", "status": 429}, False),
        ({"finish": "error", "status": 503}, False),
        ({"finish": "error", "status": 200}, False),
        ({"finish": "error", "status": 400}, None),
        ({"finish": "cancelled", "status": 499}, None),
    ],
)
def test_a_request_meets_or_misses_its_bounds_or_does_not_count(
    changes: dict[str, Any], verdict: bool | None
) -> None:
    assert met(ended(**changes), SLO) is verdict


@pytest.mark.parametrize("slo", [Slo(), Slo(ttft_s=1.0)])
def test_without_a_bound_no_answer_is_too_slow(slo: Slo) -> None:
    assert met(ended(duration_s=600.0), slo) is True
    assert met(ended(stream=False, duration_s=600.0), slo) is True
    assert met(ended(finish="error", status=503), slo) is False
