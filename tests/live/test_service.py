"""The way of a user through the running service."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from serving.instance import Instance
from tests.live.instance import LiveInstance, until
from tests.live.listening import beyond_loopback
from tests.live.load import Load, Outcome

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

MODEL = "smollm2-135m-instruct"
LONG = {"max_tokens": 120, "ignore_eos": True}  # some seconds: replicas report once in each
READ_OF_VLLM = (
    "running",
    "kv_usage_ratio",
    "prompt_tokens_total",
    "output_tokens_total",
    "steps_total",
)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def ask(live: LiveInstance, **changes: object) -> httpx.Response:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 12, "temperature": 0, **changes}
    return httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=120.0)


def test_openai_client_streams_the_right_answer(live: LiveInstance) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none")
    with client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_openai_client_completes_and_lists(live: LiveInstance) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
        assert [m.id for m in client.models.list()] == [MODEL, f"{MODEL}-int8"]
        answer = client.completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0
        )
        assert "Paris" in answer.choices[0].text
        whole = client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, logprobs=True
        )
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].logprobs is not None
    assert whole.usage is not None


def test_tokenize_counts_what_the_engine_counts(live: LiveInstance) -> None:
    asked = {"model": MODEL, "messages": QUESTION}
    counted = httpx.post(f"{live.url}/tokenize", json=asked, timeout=30.0).json()
    assert counted["count"] == ask(live).json()["usage"]["prompt_tokens"]
    tokens = {"model": MODEL, "tokens": counted["tokens"]}
    text = httpx.post(f"{live.url}/detokenize", json=tokens, timeout=30.0).json()["prompt"]
    assert "What is the capital of France?" in text


def test_chat_and_status_commands(live: LiveInstance) -> None:
    chat = live.command("chat", "What is the capital of France?")
    assert chat.returncode == 0
    assert "Paris" in chat.stdout
    shown = live.command("status")
    for word in ("tier", "main", "light", "forecast", "queued", "decisions"):
        assert word in shown.stdout
    status = json.loads(live.command("status", "--json").stdout)
    assert status["pools"][0]["ready"] == 1


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"model": "gpt-17"}, 404, "model_not_found"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, 400, "invalid_value"),
        ({"temperature": "hot"}, 400, "invalid_value"),
        ({"max_token": 3}, 400, "unknown_parameter"),
        (
            {"messages": [{"role": "user", "content": "word " * 2000}]},
            400,
            "context_length_exceeded",
        ),
        ({"max_tokens": 5000}, 400, "context_length_exceeded"),
    ],
)
def test_bad_requests_say_what_is_wrong(
    live: LiveInstance, changes: dict[str, object], status: int, code: str
) -> None:
    response = ask(live, **changes)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error["message"]


def test_malformed_json_is_a_400(live: LiveInstance) -> None:
    response = httpx.post(f"{live.url}/v1/chat/completions", content=b'{"model": ', timeout=30.0)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_cancelled_stream_leaves_the_engine(live: LiveInstance) -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 800, "ignore_eos": True}
    with httpx.stream(
        "POST", f"{live.url}/v1/chat/completions", json={**body, "stream": True}, timeout=60.0
    ) as response:
        lines = response.iter_lines()
        next(lines)
        until(lambda: running(live) == 1, limit_s=60, what="the engine runs the request")
    until(lambda: running(live) == 0, limit_s=10, what="the engine dropped the request")


def test_a_caller_that_gives_up_leaves_the_engine(live: LiveInstance) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{live.url}/v1/chat/completions",
            json={"model": MODEL, "messages": QUESTION, "max_tokens": 800, "ignore_eos": True},
            timeout=3.0,
        )
    until(lambda: running(live) == 0, limit_s=10, what="the engine dropped the request")


def running(live: LiveInstance) -> int:
    return sum(replica["running"] for replica in live.status()["replicas"])


def test_metrics_have_the_gateway_series(live: LiveInstance) -> None:
    text = httpx.get(f"{live.url}/metrics", timeout=30.0).text
    for name in ("shardwise_requests_total", "shardwise_ttft_seconds_bucket", "shardwise_tier"):
        assert name in text


def test_what_replicas_tell_of_their_engines_is_what_vllm_counts(live: LiveInstance) -> None:
    def told() -> dict[str, float]:
        return {name: live.metric(f"shardwise_replica_{name}") for name in READ_OF_VLLM}

    before = told()
    asking = threading.Thread(target=ask, args=(live,), kwargs=LONG)
    asking.start()
    until(
        lambda: told()["running"] > 0 and told()["kv_usage_ratio"] > 0,
        limit_s=60,
        what="the sequence and its blocks are seen",
    )
    asking.join()
    until(
        lambda: told()["output_tokens_total"] > before["output_tokens_total"],
        limit_s=60,
        what="its tokens are counted",
    )
    after = told()
    assert after["prompt_tokens_total"] > before["prompt_tokens_total"]
    assert after["steps_total"] > before["steps_total"]


def test_nothing_listens_beyond_loopback(live: LiveInstance) -> None:
    assert beyond_loopback(live) == []


def test_surge_scales_then_degrades_then_all_comes_back(live: LiveInstance) -> None:
    load = Load(live.url, callers=24, limit_s=300.0)
    result: list[Outcome] = []
    thread = threading.Thread(target=lambda: result.append(asyncio.run(load.run())))
    thread.start()
    try:
        until(lambda: live.answering("main") == 2, limit_s=150, what="a second replica")
        until(lambda: live.status()["tier"] == 4, limit_s=120, what="the highest tier")
        until(lambda: load.outcome.changes["light-model"] > 0, limit_s=150, what="the light model")
    finally:
        load.stop()
        thread.join(timeout=200)
    outcome = result[0]
    for change in ("logprobs-off", "max-tokens", "light-model"):
        assert outcome.changes[change] > 0
    assert outcome.statuses[429] > 0
    assert all(seconds.isdigit() and int(seconds) >= 1 for seconds in outcome.retry_after)
    assert set(outcome.statuses) <= {200, 429}
    assert not outcome.malformed
    assert not outcome.broken
    until(lambda: live.status()["tier"] == 0, limit_s=120, what="the tiers to step down")
    until(lambda: live.pool("main")["target"] == 1, limit_s=90, what="one replica again")
    reasons = [d["reason"] for d in live.status()["decisions"]]
    assert all(reasons)


def test_decision_log_replays_to_the_same_decisions(live: LiveInstance) -> None:
    replayed = live.command("replay", str(live.home / "instance" / "decisions.jsonl"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_killed_replica_costs_nobody_an_answer(live: LiveInstance) -> None:
    until(lambda: live.answering("main") == 1, limit_s=60, what="one replica")
    load = Load(live.url, callers=3, limit_s=120.0)
    result: list[Outcome] = []
    thread = threading.Thread(target=lambda: result.append(asyncio.run(load.run())))
    thread.start()
    time.sleep(3.0)
    struck(live)
    killed_s = time.monotonic()
    answer = ask(live)
    recovered_s = time.monotonic() - killed_s
    load.stop()
    thread.join(timeout=180)
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    assert not result[0].malformed
    # These ask for log probabilities: a stream under way ends with an error event; everything else
    # is answered.
    assert set(result[0].broken) <= {"stream"}
    assert set(result[0].statuses) == {200}
    print(f"answered {recovered_s:.1f} s after the kill")


def test_streams_outlive_their_replica_token_for_token(live: LiveInstance) -> None:
    until(lambda: live.answering("main") >= 1, limit_s=90, what="a replica")
    until(lambda: live.status()["tier"] == 0, limit_s=90, what="no tier")
    undisturbed = Listener(live)
    undisturbed.run()
    assert len(undisturbed.words) > 30
    listeners = [Listener(live) for _ in range(4)]
    for listener in listeners:
        listener.start()
    until(lambda: all(len(one.words) > 5 for one in listeners), limit_s=60, what="some words")
    struck(live)
    assert not any(one.ended for one in listeners), "the replicas died too late to tell"
    for listener in listeners:
        listener.join(timeout=180)
    for listener in listeners:
        assert listener.ended == "[DONE]", listener.ended
        assert "".join(listener.words) == "".join(undisturbed.words)
        assert listener.usage == undisturbed.usage
        assert len(listener.ids) == 1
    text = httpx.get(f"{live.url}/metrics", timeout=30.0).text
    resumed = next(
        line for line in text.splitlines() if line.startswith("shardwise_resumed_streams_total{")
    )
    assert float(resumed.split()[-1]) >= 4


def struck(live: LiveInstance) -> None:
    """Every replica of the main pool dies; one that is on its way out may be gone before."""
    victims = live.replicas_alive("main")
    assert victims
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()


class Listener(threading.Thread):
    """Reads one greedy stream: its words, its ids, its usage, and the last payload."""

    def __init__(self, live: LiveInstance) -> None:
        super().__init__(daemon=True)
        self.live = live
        self.words: list[str] = []
        self.ids: set[str] = set()
        self.usage: dict[str, int] | None = None
        self.ended = ""

    def run(self) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Count from one to one hundred in words."}],
            "max_tokens": 64,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"{self.live.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=180.0) as response:
            for line in response.iter_lines():
                payload = line.removeprefix("data: ")
                if payload.startswith("{"):
                    self._hear(json.loads(payload))
                if payload == "[DONE]" or '"error"' in payload:
                    self.ended = payload

    def _hear(self, event: dict[str, Any]) -> None:
        if "error" in event:
            return
        self.ids.add(event["id"])
        if not event["choices"]:
            usage = event["usage"]
            self.usage = {k: usage[k] for k in ("prompt_tokens", "completion_tokens")}
        for choice in event["choices"]:
            self.words.append(choice["delta"].get("content") or "")


@pytest.mark.parametrize(
    "name",
    [
        "VLLM::EngineCore",
        "ServeReplica:shardwise:gateway",
        "ControllerActor",
    ],
)
def test_any_other_process_may_die(live: LiveInstance, name: str) -> None:
    until(lambda: live.answering("main") >= 1, limit_s=90, what="a replica")
    # A replica may be on its way in or out after the test before: wait for one to be there.
    until(lambda: bool(live.processes(name)), limit_s=90, what=f"a process named {name}")
    for victim in live.processes(name):
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    until(lambda: answers(live), limit_s=90, what=f"an answer after {name} died")
    until(lambda: live.answering("main") >= 1, limit_s=60, what="the controller to know a replica")


def answers(live: LiveInstance) -> bool:
    try:
        response = ask(live)
    except httpx.HTTPError:
        return False
    return response.status_code == 200 and "Paris" in response.text


def test_up_again_with_the_same_plan_changes_nothing(live: LiveInstance) -> None:
    again = live.command("up", str(live.home / "plan.json"), "--config", str(live.config))
    assert again.returncode == 0, again.stderr
    assert "already running" in again.stdout
    assert f"{live.url}/v1" in again.stdout


def test_another_plan_in_one_home_is_refused(live: LiveInstance, tmp_path: Path) -> None:
    plan = json.loads((live.home / "plan.json").read_text())
    plan["workload"]["isl"] += 1
    other = tmp_path / "other.json"
    other.write_text(json.dumps(plan))
    refused = live.command("up", str(other))
    assert refused.returncode == 2
    assert "already being served" in refused.stderr


def test_what_a_killed_head_leaves_is_ended_by_down(live: LiveInstance) -> None:
    """The last of this module: the service is gone after it."""
    state = Instance(live.home / "instance")
    head = state.head()
    assert head is not None
    head.kill()
    head.wait(timeout=10)
    assert live.command("status").returncode == 4
    down = live.command("down")
    assert down.returncode == 0, down.stderr
    assert state.processes() == []
