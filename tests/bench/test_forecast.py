import numpy as np
import pytest

from bench.forecast import ORACLE, Outcome, compare, hours_at, main
from bench.forecast_traffic import Traffic


def outcome(hours, attainment):
    return Outcome(attainment=attainment, replica_hours=hours, changes_per_hour=0.0)


def test_the_cost_of_an_attainment_is_read_off_the_curve():
    curve = [outcome(30.0, 1.0), outcome(10.0, 0.9), outcome(20.0, 0.98)]
    assert hours_at(0.99, curve) == pytest.approx(25.0)
    assert hours_at(0.94, curve) == pytest.approx(15.0)
    assert hours_at(0.85, curve) == 10.0
    assert hours_at(0.99, curve[1:]) is None


def test_who_knows_the_future_pays_less_for_the_same_attainment():
    steps = np.repeat(np.tile([200.0, 1000.0], 6), 30)  # five minutes each, in steps of ten seconds
    traffic = Traffic(name="steps", step_s=10.0, tokens_per_s=steps)
    rows = {row.method: row for row in compare(traffic, 60.0, ("last_value", ORACLE))}
    assert rows[ORACLE].hours_at_95 is not None
    assert rows["last_value"].hours_at_95 is None or (
        rows[ORACLE].hours_at_95 < rows["last_value"].hours_at_95
    )


def test_a_trace_that_is_not_at_hand_is_left_out_and_said_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("bench.forecast_traffic.TRACES", tmp_path)
    monkeypatch.setattr("sys.argv", ["forecast", "--quick"])
    main()
    assert "azure conversation: left out" in capsys.readouterr().out
