"""A real Prometheus scrapes a running system: every metric is there, every panel shows something.

Everything is real but the engines, which are scripted: Ray, Serve, controller, two gateways, and
Debian's Prometheus with the example's discovery of targets and the chart's alert rules.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from serving.keys import hashed
from serving.telemetry.contract import scraped
from tests.dashboards.queries import queries
from tests.dashboards.test_alerts import FILE as ALERTS
from tests.dashboards.test_alerts import RULES
from tests.live.instance import REPOSITORY, free_port, until
from tests.live.scripted_engine import Pace
from tests.live.scripted_instance import MODEL, ScriptedInstance, scripted_instance
from tests.tooling.debian import tool

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

KEY = "sw-for-this-test"
JOB = "shardwise"
DEVICES = "shardwise_replica_device_bytes"
BOUNDS = {"minimum": 1, "initial": 2, "maximum": 2}
STEERING = {
    "replan": {"min_requests": 1},
    "keeper": {"look_s": 0.5},
}
EXPECTED = {
    "ttft_s": 0.05,
    "tpot_s": 0.02,
    "concurrency": 16,
    "tokens_per_s_per_device": 800.0,
    "tokens_per_s_per_user": 50.0,
    "goodput_rps": 10.0,
    "prefill_tokens_per_s": 10_000.0,
    "decode_tokens_per_s": 800.0,
    "kv_capacity_tokens": 100_000,
    "memory_bytes": {"weights": 1e9},
    "parts_s": {"decode": 0.02},
    "provenance": "made up for this test",
}
PLAN = {"slo": {"ttft_s": 5.0, "tpot_s": 1.0}, "expected": EXPECTED}


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    url: str

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expr}, timeout=10.0)
        assert answer.status_code == 200, (expr, answer.text)
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """As it has evaluated them."""
        data = httpx.get(f"{self.url}/api/v1/rules", timeout=10.0).json()["data"]
        return [rule for group in data["groups"] for rule in group["rules"]]


@contextmanager
def prometheus(home: Path, *, targets: str) -> Iterator[Prometheus]:
    """Scrapes as `docs/examples/prometheus.yml` says, only oftener, for as long as it lasts."""
    config = yaml.safe_load((REPOSITORY / "docs" / "examples" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    (job,) = config["scrape_configs"]
    (discovery,) = job["http_sd_configs"]
    assert discovery["url"].endswith("/metrics/targets")
    discovery |= {"url": targets, "refresh_interval": "1s"}
    path = home / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    port = free_port()
    with (home / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(tool("prometheus"), f"--config.file={path}"),
                f"--storage.tsdb.path={home / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        running = Prometheus(f"http://127.0.0.1:{port}")
        until(lambda: _answers(f"{running.url}/-/ready"), limit_s=60, what="Prometheus is ready")
        yield running
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstance]:
    home = tmp_path_factory.mktemp("home")
    keys = home / "keys.yaml"
    keys.write_text(yaml.safe_dump({"keys": [{"name": "team", "sha256": hashed(KEY)}]}))
    with scripted_instance(
        home,
        replicas=BOUNDS,
        steering=STEERING,
        gateways=2,
        keys_file=keys,
        plan_changes=PLAN,
    ) as instance:
        yield instance


@pytest.fixture(scope="module")
def watched(
    service: ScriptedInstance, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that has seen some traffic."""
    targets = f"{service.url}/metrics/targets"
    with prometheus(tmp_path_factory.mktemp("prometheus"), targets=targets) as running:
        until(
            lambda: len(running.ask(f'up{{job="{JOB}"}} == 1')) == 2,
            limit_s=60,
            what="both gateways are scraped",
        )
        for _ in range(3):
            assert asyncio.run(_traffic(service)) == {200}
        yield running


async def _traffic(service: ScriptedInstance) -> set[int]:
    """Some streams and some answers that are not; their statuses."""
    addresses = [gateway["address"] for gateway in service.status()["gateways"]]

    async def ask(client: httpx.AsyncClient, number: int) -> int:
        body = {
            "model": MODEL,
            "prompt": f"caller {number}",
            "max_tokens": 20,
            "user": Pace(prefill_s=0.1, token_s=0.1).user(),
            "stream": number % 4 != 0,
        }
        url = f"http://{addresses[number % len(addresses)]}/v1/completions"
        answer = await client.post(url, json=body, headers={"Authorization": f"Bearer {KEY}"})
        return answer.status_code

    async with httpx.AsyncClient(timeout=60.0) as client:
        return set(await asyncio.gather(*(ask(client, number) for number in range(16))))


def test_every_metric_is_scraped_with_labels_of_the_contract(
    service: ScriptedInstance, watched: Prometheus
) -> None:
    del watched  # traffic has been
    known = {name: metric for metric in scraped() for name in metric.series}
    for gateway in service.status()["gateways"]:
        until(
            lambda: "shardwise_replica_host_bytes" in _scrape(gateway["address"]),  # noqa: B023
            limit_s=60,
            what="a keeper has looked",
        )
        found = set()
        for family in text_string_to_metric_families(_scrape(gateway["address"])):
            for sample in family.samples:
                found.add(sample.name)
                metric = known[sample.name]
                assert sample.labels.keys() - {"le"} == set(metric.label_names)
                for label in metric.labels:
                    assert not label.values or sample.labels[label.name] in label.values
        assert found == known.keys()


def test_every_query_of_every_dashboard_returns_data(watched: Prometheus) -> None:
    asked = queries(job=JOB)
    missing = {query.where for query in asked}

    def all_there() -> bool:
        for query in asked:
            if query.where in missing:
                values = [float(series["value"][1]) for series in watched.ask(query.expr)]
                # Without NVML nobody knows the memory of devices.
                if values and (DEVICES in query.expr or not all(map(math.isnan, values))):
                    missing.discard(query.where)
        return not missing

    try:
        until(all_there, limit_s=60, what="every query has data")
    except AssertionError:
        raise AssertionError(f"no data: {sorted(missing)}") from None


def test_panels_show_the_traffic_there_was(service: ScriptedInstance, watched: Prometheus) -> None:
    def value(expr: str) -> float:
        (series,) = watched.ask(expr)
        return float(series["value"][1])

    served = 'sum(shardwise_requests_total{status="200"})'
    until(lambda: value(served) == 48, limit_s=60, what="all requests are scraped")
    assert value("sum(shardwise_slo_requests_total)") == 48
    assert value('sum(shardwise_slo_requests_total{verdict="met"})') == 48
    assert value("sum(shardwise_tpot_seconds_count)") == 36  # streams
    assert value("max(shardwise_plan_ttft_seconds)") == 0.05
    seen = watched.ask("max(shardwise_seen_ttft_seconds)")
    assert float(seen[0]["value"][1]) > 0.1  # what engines took to their first token
    up = {series["metric"]["instance"] for series in watched.ask(f'up{{job="{JOB}"}}')}
    assert up == {gateway["address"] for gateway in service.status()["gateways"]}


def test_alerts_are_evaluated_and_none_is_raised_by_a_healthy_service(watched: Prometheus) -> None:
    until(
        lambda: all(rule["health"] == "ok" for rule in watched.rules()),
        limit_s=60,
        what="every rule has been evaluated",
    )
    rules = {rule["name"]: rule for rule in watched.rules()}
    assert rules.keys() == RULES.keys()
    assert [name for name, rule in rules.items() if rule["state"] == "firing"] == []


def _scrape(address: str) -> str:
    return httpx.get(f"http://{address}/metrics", timeout=30.0).text


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False
