"""Pushing dashboards, over real HTTP, to a double of Grafana's API (`fake_grafana`)."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli import main as cli
from cluster.errors import ShardwiseError
from dashboards.push import differences
from dashboards.table import DASHBOARDS
from tests.dashboards.fake_grafana import ALL, LOKI, PROMETHEUS, TOKEN, FakeGrafana, fake_grafana
from tests.dashboards.fake_grafana import serving as listening

pytest.importorskip("grafana_client", reason="needs the grafana extra")


@pytest.fixture
def grafana(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGrafana]:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "*")
    with fake_grafana() as running:
        yield running


def push(url: str, *options: str) -> Result:
    return CliRunner().invoke(cli.app, ["dashboards", "push", "--url", url, *options])


def pushed(grafana: FakeGrafana, *options: str) -> list[str]:
    """What is said."""
    done = push(grafana.url + grafana.prefix, *options)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output.splitlines()


def error_of(url: str, *options: str) -> ShardwiseError:
    failed = push(url, *options).exception
    assert isinstance(failed, ShardwiseError), failed
    return failed


def test_dashboards_are_created_in_a_new_folder_with_the_datasource_chosen(
    grafana: FakeGrafana,
) -> None:
    said = pushed(grafana)
    assert said[:2] == ["datasource: Prometheus", "folder 'Shardwise': created"]
    assert set(said[2:]) == {f"{each.uid}: created" for each in DASHBOARDS}
    assert grafana.folders == {"folder0": "Shardwise"}
    assert set(grafana.places.values()) == {"folder0"}
    for each in DASHBOARDS:
        chosen = grafana.dashboards[each.uid]["templating"]["list"][0]
        assert chosen["current"] == {"text": "Prometheus", "value": "prom-1"}


def test_pushing_again_writes_nothing(grafana: FakeGrafana) -> None:
    pushed(grafana)
    grafana.writes.clear()
    assert pushed(grafana)[1:] == [f"{each.uid}: unchanged" for each in DASHBOARDS]
    assert grafana.writes == []


def test_only_what_somebody_has_changed_is_updated(grafana: FakeGrafana) -> None:
    pushed(grafana)
    grafana.writes.clear()
    changed, *others = DASHBOARDS
    panel = grafana.dashboards[changed.uid]["panels"][1]
    panel["title"] = "Mine"
    said = pushed(grafana)
    assert f"{changed.uid}: updated (panels.1.title)" in said
    assert [f"{each.uid}: unchanged" for each in others] == said[2:]
    assert grafana.writes == ["/dashboards/db"]
    assert grafana.dashboards[changed.uid]["panels"][1]["title"] != "Mine"


def test_a_dashboard_that_lies_elsewhere_is_moved(grafana: FakeGrafana) -> None:
    pushed(grafana)
    grafana.folders["other"] = "Other"
    moved = DASHBOARDS[0].uid
    grafana.places[moved] = "other"
    assert f"{moved}: moved to the folder" in pushed(grafana)
    assert grafana.places[moved] == "folder0"


def test_a_dry_run_says_what_would_change_and_changes_nothing(grafana: FakeGrafana) -> None:
    said = pushed(grafana, "--dry-run")
    assert "folder 'Shardwise': would be created" in said
    assert f"{DASHBOARDS[0].uid}: would be created" in said
    assert (grafana.writes, grafana.folders, grafana.dashboards) == ([], {}, {})


@pytest.mark.parametrize("wanted", ["Other", "prom-2"])
def test_the_datasource_is_chosen_by_name_or_uid(grafana: FakeGrafana, wanted: str) -> None:
    other = {"name": "Other", "uid": "prom-2", "type": "prometheus", "isDefault": False}
    grafana.datasources.append(other)
    assert pushed(grafana, "--datasource", wanted)[0] == "datasource: Other"


def test_a_folder_that_is_there_is_used_by_title_or_uid(grafana: FakeGrafana) -> None:
    grafana.folders["abc"] = "Inference"
    for wanted in ("Inference", "abc"):
        pushed(grafana, "--folder", wanted)
    assert grafana.folders == {"abc": "Inference"}
    assert set(grafana.places.values()) == {"abc"}


def test_grafana_may_be_served_under_a_path(grafana: FakeGrafana) -> None:
    grafana.prefix = "/monitoring/grafana"
    pushed(grafana)
    assert len(grafana.dashboards) == len(DASHBOARDS)


def test_the_token_may_be_in_a_file(
    grafana: FakeGrafana, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAFANA_TOKEN")
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    pushed(grafana, "--token-file", str(path))
    assert "no token" in str(error_of(grafana.url))
    assert "cannot be read" in str(error_of(grafana.url, "--token-file", str(tmp_path)))


def test_a_wrong_token_is_said_to_be_one(grafana: FakeGrafana) -> None:
    failed = error_of(grafana.url, "--token", "glsa_wrong")
    assert "does not accept the token" in str(failed)
    assert failed.exit_code == 2


@pytest.mark.parametrize(
    "missing", ["datasources:read", "folders:read", "folders:create", "dashboards:read"]
)
def test_a_missing_permission_is_named(grafana: FakeGrafana, missing: str) -> None:
    grafana.permissions = ALL - {missing}
    failed = error_of(grafana.url)
    assert f"needs the permission {missing}" in str(failed)
    assert grafana.dashboards == {}


def test_without_the_right_to_save_nothing_is_said_to_be_done(grafana: FakeGrafana) -> None:
    grafana.permissions = ALL - {"dashboards:create"}
    assert "dashboards:create and dashboards:write" in str(error_of(grafana.url))


def test_an_unknown_datasource_lists_those_there(grafana: FakeGrafana) -> None:
    said = str(error_of(grafana.url, "--datasource", "prometeus"))
    assert "unknown datasource 'prometeus'" in said
    assert "Prometheus (uid prom-1)" in said
    assert "Loki" not in said


def test_a_datasource_that_is_no_prometheus_is_refused(grafana: FakeGrafana) -> None:
    assert "is of type loki" in str(error_of(grafana.url, "--datasource", "Loki"))


@pytest.mark.parametrize(
    ("others", "said"),
    [([], "add one"), ([PROMETHEUS | {"isDefault": False, "name": n} for n in "ab"], "a (uid")],
)
def test_without_a_default_datasource_one_must_be_chosen(
    grafana: FakeGrafana, others: list[dict[str, object]], said: str
) -> None:
    grafana.datasources = [LOKI, *others]
    assert said in str(error_of(grafana.url))


@pytest.mark.parametrize("version", ["9.5.21", "5.1.3", ""])
def test_a_version_that_is_too_old_is_named_with_the_limit(
    grafana: FakeGrafana, version: str
) -> None:
    grafana.version = version
    said = str(error_of(grafana.url))
    assert (version or "unknown version") in said
    assert "need 10.0 or later" in said


def test_versions_with_suffixes_are_read(grafana: FakeGrafana) -> None:
    grafana.version = "13.1.0-security-01"
    pushed(grafana)
    assert grafana.dashboards.keys() == {dashboard.uid for dashboard in DASHBOARDS}


def test_a_provisioned_dashboard_is_left_to_its_file(grafana: FakeGrafana) -> None:
    pushed(grafana)
    uid = DASHBOARDS[0].uid
    grafana.provisioned.add(uid)
    pushed(grafana)  # it is as it should be
    grafana.dashboards[uid]["title"] = "Other"
    assert f"'{uid}' is provisioned from a file" in str(error_of(grafana.url))


def test_nobody_at_the_address_is_told_as_such() -> None:
    failed = error_of("http://127.0.0.1:9", "--token", TOKEN)
    assert "cannot reach Grafana at http://127.0.0.1:9" in str(failed)
    assert failed.exit_code == 4


@pytest.mark.parametrize("url", ["127.0.0.1:3000", "grafana", "ftp://host"])
def test_what_is_no_url_is_refused(url: str) -> None:
    assert "no address of a Grafana" in str(error_of(url, "--token", TOKEN))


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (200, "text/html", "<html>hello</html>"),
        (200, "application/json", '{"status": "ok"}'),
        (200, "application/json", "no json"),
        (404, "text/plain", "not found"),
    ],
)
def test_what_is_no_grafana_is_told_as_such(status: int, kind: str, body: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with listening(Other) as url:
        failed = error_of(url, "--token", TOKEN)
    assert f"what answers at {url} is no Grafana" in str(failed)
    assert failed.exit_code == 4


def test_a_grafana_that_fails_is_told_as_such(grafana: FakeGrafana) -> None:
    grafana.broken = True
    assert "database is locked" in str(error_of(grafana.url))


def test_what_grafana_adds_is_no_difference_and_what_it_lacks_is() -> None:
    wanted = {"a": 1, "b": [{"c": 2}], "d": {}, "e": "x"}
    assert list(differences(wanted, {"a": 1, "b": [{"c": 2, "id": 7}], "e": "x", "z": 3})) == []
    assert list(differences(wanted, {"a": 2, "b": [{"c": 2}, {}]})) == ["a", "b", "e"]


def test_the_client_leaves_this_environment_its_urllib3() -> None:
    import urllib3

    assert urllib3.__version__ == importlib.metadata.version("urllib3")
