"""Kinds of reasons: each belongs to one action, and no decision has another action's."""

from __future__ import annotations

from collections import Counter

import pytest

from autoscaler.reasons import REASONS, Action, Reason
from autoscaler.snapshot import Decision


def test_each_reason_belongs_to_one_action():
    counts = Counter(reason for reasons in REASONS.values() for reason in reasons)
    assert set(counts) == set(Reason)
    assert set(counts.values()) == {1}
    assert set(REASONS) == set(Action)


def test_a_decision_has_no_reason_of_another_action():
    with pytest.raises(ValueError, match="'drift' is no reason to scale"):
        Decision(action=Action.SCALE, pool="main", value=1, kind=Reason.DRIFT, reason="why")
