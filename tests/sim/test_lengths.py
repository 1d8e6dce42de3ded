import pytest

from cluster.errors import UnknownNameError
from cluster.routing import predicted_tokens
from cluster.sim.event_log import EventLog
from cluster.sim.setup import GatewayRules
from cluster.sim.simulation import Simulation
from tests.sim.build import pool, request, setup


class Loads(EventLog):
    """Remembers each request's predicted tokens when it is dispatched."""

    def __init__(self):
        self.seen = []

    def dispatched(self, job, replica_id, now_s):
        self.seen.append(job.load)


def loads(requests, name, *, usual=100):
    log = Loads()
    rules = GatewayRules(expected_output=usual, length_predictor=name, batch_wait_s=0.0)
    simulation = Simulation(setup(pool(), rules=rules), log=log)
    simulation.run(requests)
    return log.seen


ONE_BY_ONE = [request(float(number), prompt=20, output=10) for number in range(100)]


def test_the_formula_believes_what_is_usual():
    assert set(loads(ONE_BY_ONE, "formula")) == {
        predicted_tokens(prompt_tokens=20, output_tokens=100)
    }


def test_the_learned_predictor_learns_from_finished_requests():
    seen = loads(ONE_BY_ONE, "learned")
    assert seen[0] == predicted_tokens(prompt_tokens=20, output_tokens=100)
    assert seen[-1] == pytest.approx(predicted_tokens(prompt_tokens=20, output_tokens=10), rel=0.05)


def test_nothing_is_known_of_requests_that_are_still_running():
    at_once = [request(number * 1e-6, prompt=20, output=10) for number in range(8)]
    assert len(set(loads(at_once, "learned"))) == 1


def test_an_unknown_predictor_is_refused():
    with pytest.raises(UnknownNameError, match="length predictor"):
        GatewayRules(length_predictor="crystal ball")
