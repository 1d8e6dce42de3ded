import json

import httpx
import pytest

from cluster.errors import UnavailableError
from serving.control.scaler import ServeScaler

# As Serve's REST interface answers, the fields read and some that are not.
DETAILS = {
    "proxies": {},
    "applications": {
        "shardwise": {
            "status": "DEPLOYING",
            "deployments": {
                "main": {
                    "status": "UPSCALING",
                    "message": "waiting for a bundle",
                    "target_num_replicas": 3,
                    "replicas": [
                        {
                            "state": "RUNNING",
                            "replica_id": "abc",
                            "actor_name": "SERVE_REPLICA::shardwise#main#abc",
                            "node_id": "n1",
                            "worker_id": "w1",
                            "pid": 77,
                            "start_time_s": 5.5,
                        },
                        {"state": "PENDING_MIGRATION"},
                        {"state": "STARTING"},
                        {"state": "STOPPING"},
                    ],
                }
            },
        }
    },
}


def scaler(handler: object) -> tuple[ServeScaler, list[httpx.Request]]:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if isinstance(handler, Exception):
            raise handler
        assert isinstance(handler, httpx.Response)
        return handler

    transport = httpx.MockTransport(answer)
    made = ServeScaler(
        dashboard_url="http://dashboard", app="shardwise", token="secret", transport=transport
    )
    return made, seen


async def test_states_are_read() -> None:
    made, seen = scaler(httpx.Response(200, json=DETAILS))
    (state,) = (await made.states()).values()
    assert (state.name, state.target, state.running, state.starting) == ("main", 3, 2, 1)
    assert state.message == "waiting for a bundle"
    assert state.deploying
    found = state.replica("abc")
    assert found is not None
    assert (found.pid, found.node_id, found.since_s, found.answers) == (77, "n1", 5.5, True)
    assert state.replica("other") is None
    assert seen[0].headers["Authorization"] == "Bearer secret"


async def test_an_application_that_is_not_there_has_no_states() -> None:
    made, _ = scaler(httpx.Response(200, json={"applications": {}}))
    assert await made.states() == {}


async def test_a_target_is_set() -> None:
    made, seen = scaler(httpx.Response(200, json={"message": "ok"}))
    await made.scale("main", 2)
    assert seen[0].url.path == "/api/v1/applications/shardwise/deployments/main/scale"
    assert json.loads(seen[0].content) == {"target_num_replicas": 2}


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (httpx.ConnectError("refused"), "Is the Ray dashboard up"),
        (httpx.Response(200, text="<html>"), "Is the Ray dashboard up"),
        (httpx.Response(412, json={"error": "external scaler is disabled"}), "scaler is disabled"),
        (httpx.Response(200, json=[]), "refused"),
    ],
)
async def test_trouble_is_told(handler: object, message: str) -> None:
    made, _ = scaler(handler)
    with pytest.raises(UnavailableError, match=message):
        await made.scale("main", 2)


async def test_a_later_generation_is_named_by_its_application() -> None:
    later = {
        "status": "DELETING",
        "deployments": {
            "main": {
                "status": "HEALTHY",
                "target_num_replicas": 1,
                "replicas": [{"state": "RUNNING", "replica_id": "a", "node_id": "n1"}],
                "deployment_config": {"user_config": {"number": 2}},
            }
        },
    }
    others = {"shardwise-main": later, "another-main-2": later, "shardwise-main-2": later}
    made, _ = scaler(
        httpx.Response(200, json={"applications": DETAILS["applications"] | others})  # type: ignore[operator]
    )
    states = await made.states()
    assert set(states) == {"main", "shardwise-main-2"}
    generation = states["shardwise-main-2"]
    assert (generation.target, generation.alive, generation.status) == (1, 1, "DELETING")
    assert (generation.nodes, generation.origin) == ({"a": "n1"}, {"number": 2})


async def test_a_later_generation_is_scaled_in_its_application() -> None:
    made, seen = scaler(httpx.Response(200, json={"message": "ok"}))
    await made.scale("shardwise-main-2", 3)
    assert seen[0].url.path == "/api/v1/applications/shardwise-main-2/deployments/main/scale"
